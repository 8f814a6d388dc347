"""How the dashboard looks in a real browser, and how one moves about in it."""

import re
from dataclasses import replace
from itertools import pairwise

import pytest

from kintsugi.core.cluster import Cluster, Worker
from kintsugi.core.ending import Outcome
from kintsugi.core.membership import Event, EventKind
from tests.api.dashboard.browser import CUT, HOME, LARGE, OVERLAY, PAGES, PHONE, STRANDED, grid_of
from tests.builders import uniform_profile
from tests.chromium import CHROMIUM, MISSING
from tests.planner.overlay.world import mesh

Axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(CHROMIUM is None, reason=MISSING),
]


def violations(page, **run_only):
    """What axe-core finds; it did look at contrasts."""
    found = Axe().run(page, options={"runOnly": run_only}).response
    assert "color-contrast" in {rule["id"] for rule in found["passes"] + found["violations"]}
    return [(rule["id"], node["target"], node["failureSummary"]) for rule in found["violations"] for node in rule["nodes"][:3]]


def test_every_page_is_accessible_light_and_dark_and_keeps_its_policy(visit):
    visitor = visit(color_scheme="light", reduced_motion="reduce")
    for path in (*PAGES, STRANDED):
        response = visitor.go(path)
        assert "default-src 'none'" in response.header_value("content-security-policy")
        assert violations(visitor.page, type="tag", values=["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]) == [], path
        visitor.page.emulate_media(color_scheme="dark")
        assert violations(visitor.page, type="rule", values=["color-contrast"]) == [], path
        visitor.page.emulate_media(color_scheme="light")


def test_no_page_is_wider_than_a_phone(visit):
    visitor = visit(viewport=PHONE, has_touch=True)
    for path in (*PAGES, LARGE, f"{LARGE}/schedule", STRANDED):
        visitor.go(path)
        assert visitor.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], path


def test_no_page_is_wider_than_a_phone_whatever_people_call_things(visit, site):
    _, client = site
    job, names, reason = "j" * 100, [letter * 200 for letter in "stuv"], "because" * 100
    profile = replace(uniform_profile(16), name="p" * 200)
    cluster = Cluster(name="n" * 200, workers=tuple(Worker(id=name, host=name) for name in names))
    client.create_job(job=job, profile=profile, cluster=cluster, settings=grid_of(8, 4, 1))
    client.post_event(job, Event(kind=EventKind.WORKER_FAILED, id="e" * 200, generation=0, worker=names[2]))
    client.end(job, Outcome.FAILED, reason=reason, by="b" * 200)
    visitor = visit(viewport={"width": 320, "height": 640})
    home = f"/dashboard/jobs/{job}"
    pages = (f"{home}/{page}" for page in ("schedule", "why", "history", f"whatif?fail={names[0]}"))
    for path in ("/dashboard?ended=true", home, *pages):
        visitor.go(path)
        assert visitor.page.evaluate("document.documentElement.scrollWidth") <= 320, path
    assert reason in visitor.page.locator("#ended").inner_text()


def test_on_a_wide_screen_all_of_a_page_begins_at_one_line(visit):
    visitor = visit(viewport={"width": 2560, "height": 1300})
    visitor.go(HOME)
    lefts = [visitor.page.locator(part).bounding_box()["x"] for part in (".brand", ".headline", ".figures-large")]
    assert max(lefts) - min(lefts) < 1


SEEN_ENDS = """(elements) => elements.filter((each) => {
  const [name, room] = [each, each.closest(".slot-name")].map((it) => it.getBoundingClientRect());
  return name.left < room.left && Math.abs(name.right - room.right) <= 1;
}).length"""


@pytest.mark.parametrize("viewport", [PHONE, {"width": 1280, "height": 860}], ids=["phone", "desktop"])
def test_names_of_many_workers_stay_readable(visit, site, viewport):
    _, client = site
    job = f"many-{viewport['width']}"
    profile = replace(uniform_profile(16), name="p" * 98)
    client.create_job(job=job, profile=profile, workers=66, settings=grid_of(505, 5, 13))
    client.post_event(job, Event(kind=EventKind.STRAGGLER, id="slow", generation=0, worker="w14", speed_ratio=0.55))
    visitor = visit(viewport=viewport)
    page = visitor.page
    visitor.go(f"/dashboard/jobs/{job}")
    assert page.locator(".grid th", has_text="101 mb").count() == 5
    assert page.locator(".slot-slow").count() == 1
    assert page.locator(".grid th, .slot-name").evaluate_all(CUT) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    visitor.go(f"/dashboard/jobs/{job}/whatif")
    spare = page.locator(".bench .ask-dead")
    spare.click()
    name, mark = (spare.locator(part).bounding_box() for part in (".slot-name", ".ask-mark"))
    assert name["x"] + name["width"] <= mark["x"]
    assert page.locator(".slot-name").evaluate_all(CUT) == []


def test_of_long_names_the_ends_are_seen_by_which_they_differ(visit, site):
    _, client = site
    names = [f"gpu-node-pool-of-the-cluster-{number:04}" for number in range(12)]
    cluster = Cluster(name="alike", workers=tuple(Worker(id=name, host=f"h-{name}") for name in names))
    client.create_job(job="alike", profile=uniform_profile(16), cluster=cluster, settings=grid_of(8, 2, 6))
    visitor = visit(viewport=PHONE)
    for path in ("/dashboard/jobs/alike", "/dashboard/jobs/alike/whatif"):
        visitor.go(path)
        assert sorted(visitor.page.locator(".slot-name").all_text_contents()) == names
        assert visitor.page.locator(".slot-name bdi").evaluate_all(SEEN_ENDS) == len(names)


@pytest.mark.parametrize("width", [400, 800, 1600])
def test_names_and_figures_are_whole_on_every_width(visit, width):
    visitor = visit(viewport={"width": width, "height": 900})
    for path in (LARGE, f"{LARGE}/whatif", OVERLAY):
        visitor.go(path)
        assert visitor.page.locator(".slot-name, .figures-large dd").evaluate_all(CUT) == [], path


def test_pages_are_readable_without_scripts(visit):
    visitor = visit(java_script_enabled=False)
    page = visitor.page
    page.goto(f"{HOME}/schedule")
    assert page.locator("img.picture").bounding_box()["height"] > 200
    page.goto(f"{HOME}/whatif")
    page.locator('input[name="fail"][value="w00"]').check(force=True)
    page.get_by_role("button", name="Decide").click()
    assert "Idle share" in page.locator("#reply").inner_text()
    page.goto(HOME)
    assert page.locator("td.slot-mended").count() == 1


def test_labels_of_the_charts_are_whole(visit):
    visitor = visit()
    visitor.go(f"{HOME}/history")
    outside = """(charts) => charts.flatMap((chart) => [...chart.querySelectorAll("text")].filter((text) => {
      const [inner, outer] = [text.getBoundingClientRect(), chart.getBoundingClientRect()];
      return inner.left < outer.left || inner.right > outer.right;
    })).map((text) => text.textContent)"""
    assert visitor.page.locator("svg.chart").count() == 2
    assert visitor.page.locator("svg.chart").evaluate_all(outside) == []


def test_the_button_to_leave_is_in_sight_however_narrow_the_page(visit, site):
    _, client = site
    for event, _ in mesh("w00", "w01").log:
        client.post_overlay_event("narrow", event)
    visitor = visit(viewport={"width": 400, "height": 700})
    visitor.go("/dashboard/jobs/narrow/overlay")
    box, button = (visitor.page.locator(name).bounding_box() for name in ("#workers-box", "#leave-w01"))
    assert visitor.page.locator("#workers-box").evaluate("(box) => box.scrollWidth > box.clientWidth")
    assert button["x"] + button["width"] <= box["x"] + box["width"]


def test_keys_alone_lead_through_a_page(visit):
    visitor = visit()
    page = visitor.page
    visitor.go(HOME)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.locator(".skip").bounding_box()["y"] >= 0
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    for _ in range(10):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "slot-0-0":
            break
    outline = "getComputedStyle(document.activeElement.firstElementChild).outlineStyle"
    assert page.evaluate(outline) == "solid"
    for key, slot in (("ArrowRight", "0-1"), ("ArrowDown", "1-1"), ("ArrowLeft", "1-0"), ("End", "1-1"), ("Control+End", "3-1")):
        page.keyboard.press(key)
        assert page.evaluate("document.activeElement.id") == f"slot-{slot}"
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    assert "w03 is lost" in page.locator(".inspector").inner_text()
    assert page.locator("td.slot[tabindex='0']").count() == 1


def picture(page):
    """What the last chart shows, once it is drawn."""
    return page.evaluate(
        "() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame("
        "() => resolve([...document.querySelectorAll('canvas')].at(-1).toDataURL()))))"
    )


LABELS = """() => {
  const { clearRect, fillText } = CanvasRenderingContext2D.prototype;
  CanvasRenderingContext2D.prototype.clearRect = function (...all) {
    window.heights = [];
    clearRect.apply(this, all);
  };
  CanvasRenderingContext2D.prototype.fillText = function (text, x, y, ...more) {
    if (this.textAlign === "right") heights.push(y);
    fillText.call(this, text, x, y, ...more);
  };
}"""
"""Remembers how far down the names of the rows were written last."""


def test_names_of_the_schedules_rows_do_not_touch(visit):
    visitor = visit()
    page = visitor.page
    visitor.go(f"{LARGE}/schedule")
    page.evaluate(LABELS)
    for _ in range(6):
        for scrolled in (1, 10, 0):
            page.locator(".chart-box").evaluate("(box, top) => (box.scrollTop = top)", scrolled)
            picture(page)
            heights = page.evaluate("heights")
            assert min(below - above for above, below in pairwise(heights)) >= 11
        page.get_by_role("button", name="Rows +").click()


def test_the_schedule_zooms_by_buttons_keys_and_wheel(visit):
    visitor = visit()
    page = visitor.page
    visitor.go(f"{LARGE}/schedule")
    whole = picture(page)
    page.get_by_role("button", name="zoom in").click()
    zoomed = picture(page)
    assert zoomed != whole
    page.get_by_role("button", name="Fit").click()
    assert picture(page) == whole
    box = page.locator(".chart-box").last
    box.focus()
    box.press("ArrowRight")
    words = page.locator(".pick-line").last
    assert re.match(r"w00: forward, micro-batch 1, stage 0\. .* to .*: .*\.", words.inner_text())
    box.press("ArrowDown")
    assert words.inner_text().startswith("w01: ")
    selected = picture(page)
    for key in ("+", "Shift+ArrowRight", "]", "-"):
        box.press(key)
        changed = picture(page)
        assert changed != selected, key
        selected = changed
    box.hover()
    page.mouse.wheel(0, -400)
    assert picture(page) != selected
    box.press("0")
    page.mouse.move(*(box.bounding_box()[side] + 150 for side in ("x", "y")))
    page.locator(".tip").wait_for()


def test_the_switch_between_light_and_dark_is_remembered(visit):
    visitor = visit(color_scheme="light")
    page = visitor.page
    visitor.go("/dashboard")
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.get_by_role("button", name="Use dark colours").click()
    dark = page.evaluate(background)
    assert dark != light
    visitor.go(HOME)
    assert page.evaluate(background) == dark


def test_paper_is_light_and_keeps_the_legend_whatever_the_screen_is(visit):
    visitor = visit(color_scheme="light")
    page = visitor.page
    visitor.go(f"{HOME}/schedule")
    ink = page.evaluate("getComputedStyle(document.body).color")
    page.get_by_role("button", name="Use dark colours").click()
    assert page.evaluate("getComputedStyle(document.body).color") != ink
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).color") == ink
    kept = page.locator(".swatch").evaluate_all("(all) => all.map((each) => getComputedStyle(each).printColorAdjust)")
    assert set(kept) == {"exact"}


def test_refusals_are_pages_with_a_way_out(visit):
    visitor = visit()
    visitor.page.goto("/dashboard/jobs/nobody")
    visitor.page.get_by_role("link", name="All jobs").click()
    visitor.page.get_by_role("heading", name="Jobs").wait_for()
    visitor.complaints = [text for text in visitor.complaints if "404" not in text]
