"""The dashboard in a real browser: one service process with real jobs, one Chromium, for all tests."""

import re
import signal
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from api.access.tokens import NewToken, Scope
from kintsugi.client import Client
from kintsugi.core.cluster import Cluster, Worker
from kintsugi.core.ending import Outcome
from kintsugi.core.errors import InfeasibleError
from kintsugi.core.job import JobSettings, Ranges
from kintsugi.core.membership import Event, EventKind
from kintsugi.core.messages import Measurement, Report, ReportStatus
from kintsugi.core.overlay import WorkerState
from kintsugi.core.overlay_messages import OverlayEvent, OverlayEventKind, OverlayHeartbeat
from kintsugi.core.plan import Policy
from tests.api.access.world import issued
from tests.builders import uniform_profile
from tests.chromium import CHROMIUM, MISSING
from tests.planner.overlay.world import mesh
from tests.services import service

playwright_api = pytest.importorskip("playwright.sync_api")
Axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(CHROMIUM is None, reason=MISSING),
]

PATIENCE_MILLISECONDS = 120_000
HOME = "/dashboard/jobs/rerouted"
OVERLAY = "/dashboard/jobs/hospitals/overlay"
PAGES = ("/dashboard", HOME, OVERLAY, f"{HOME}/schedule", f"{HOME}/why", f"{HOME}/history", f"{HOME}/whatif?fail=w00&slow=w02")
LARGE, STRANDED = "/dashboard/jobs/large", "/dashboard/jobs/stranded"
PHONE = {"width": 360, "height": 740}


def lose(client, job, worker):
    generation = client.plan(job, brief=True).generation
    return client.post_event(
        job, Event(kind=EventKind.WORKER_FAILED, id=f"{worker}-{generation}", generation=generation, worker=worker)
    )


def grid_of(num_microbatches, dp, pp, policy=None):
    ranges = Ranges(min_dp=dp, max_dp=dp, min_pp=pp, max_pp=pp)
    return JobSettings(num_microbatches=num_microbatches, ranges=ranges, policy=policy)


def tell(client):
    """A job with rerouted work and a recovery, one of 256 workers, and one that is left without a plan."""
    profile = uniform_profile(16)
    client.create_job(
        job="rerouted", profile=profile, workers=9, workers_per_host=2, settings=grid_of(12, 4, 2, Policy.DATA_REROUTING)
    )
    lose(client, "rerouted", "w03")
    measured = Measurement(
        iteration_seconds=0.9, phase_seconds={"detected": 0.4, "planned": 0.42, "resumed": 1.5, "first_step": 2.5}
    )
    client.report("rerouted", Report(generation=1, status=ReportStatus.APPLIED, measured=measured))
    client.create_job(job="large", profile=profile, workers=256, settings=grid_of(64, 32, 8))
    client.create_job(job="stranded", profile=profile, workers=2, settings=grid_of(4, 1, 2))
    with pytest.raises(InfeasibleError):
        lose(client, "stranded", "w01")
    tell_of_an_overlay(client)


def tell_of_an_overlay(client):
    """Workers that are active, fetch the state, connect, were asked to leave, and failed: the log of a world in short words."""
    world = mesh("w00", "w01", "w02", "w03")
    world.join("w04", "w00", "w02")
    world.measure("w00", "w04")
    world.measure("w02", "w04")
    world.join("w05", "w01")
    world.tell("worker_draining", worker="w03", detail="maintenance")
    world.grow("w06", "w00")
    world.tell("worker_failed", worker="w06", detail="power")
    for event, _ in world.log:
        client.post_overlay_event("hospitals", event)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Address of the service, and a client of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KINTSUGI_PLANS_AHEAD", "false")
        folder = tmp_path_factory.mktemp("dashboard")
        with service(Path(folder) / "kintsugi.sqlite3") as process, Client(process.url) as client:
            tell(client)
            yield process, client


@pytest.fixture(scope="module")
def chromium():
    with playwright_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        try:
            yield browser
        finally:
            browser.close()


class Visitor:
    """A page in a fresh context; whatever the browser complains of, and where it asks, is remembered."""

    def __init__(self, browser, url, **options):
        self.url = url
        self.context = browser.new_context(base_url=url, **options)
        self.context.set_default_timeout(PATIENCE_MILLISECONDS)
        self.page = self.context.new_page()
        self.complaints, self.hosts = [], set()
        self.page.on(
            "console", lambda message: self.complaints.append(message.text) if message.type in ("error", "warning") else None
        )
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.hosts.add(urlsplit(request.url).netloc))

    def go(self, path):
        response = self.page.goto(path)
        self.page.locator("#live, .error-status").first.wait_for(state="attached")
        if path.endswith("/schedule"):
            self.page.locator("#schedule[data-drawn]").wait_for()
        return response

    def check(self):
        assert self.complaints == []
        assert self.hosts <= {urlsplit(self.url).netloc}


@pytest.fixture
def visit(chromium, site):
    """Opens pages; at the end nobody complained, and nothing came from another host."""
    visitors = []

    def begin(**options):
        visitors.append(Visitor(chromium, site[0].url, **{"viewport": {"width": 1280, "height": 860}, **options}))
        return visitors[-1]

    yield begin
    for visitor in visitors:
        visitor.context.close()
    for visitor in visitors:
        visitor.check()


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


CUT = "(elements) => elements.filter((each) => each.scrollWidth > each.clientWidth + 1).map((each) => each.textContent)"
"""By more than the fractions of a pixel to which widths are rounded."""
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


def test_a_failure_is_seen_without_loading_the_page_again(visit, site):
    _, client = site
    client.create_job(job="watched", profile=uniform_profile(16), workers=8, settings=grid_of(12, 4, 2, Policy.DATA_REROUTING))
    visitor = visit()
    page = visitor.page
    visitor.go("/dashboard/jobs/watched")
    page.evaluate("window.isTheSamePage = true")
    page.locator("#slot-2-1").focus()
    lose(client, "watched", "w01")
    page.locator("#slot-0-1.slot-mended").wait_for()
    assert page.locator("td.slot-helping").count() == 3
    assert page.evaluate("window.isTheSamePage")
    assert page.evaluate("document.activeElement.id") == "slot-2-1"
    client.report("watched", Report(generation=1, status=ReportStatus.APPLIED))
    page.locator(".headline .chip-good").wait_for()


@pytest.mark.parametrize("name", ["why", "history"])
def test_a_table_keeps_the_focus_while_the_page_changes(visit, site, name):
    _, client = site
    job = f"read-{name}"
    client.create_job(job=job, profile=uniform_profile(16), workers=8, settings=grid_of(12, 4, 2, Policy.DATA_REROUTING))
    page = (visitor := visit()).page
    visitor.go(f"/dashboard/jobs/{job}/{name}")
    box = page.locator(".scroll").first
    box.focus()
    before = page.evaluate("document.activeElement.id")
    page.evaluate("document.activeElement.dataset.before = ''")
    lose(client, job, "w01")
    page.locator("[data-before]").wait_for(state="detached")
    assert page.evaluate("document.activeElement.id") == before != ""


def test_labels_of_the_charts_are_whole(visit):
    visitor = visit()
    visitor.go(f"{HOME}/history")
    outside = """(charts) => charts.flatMap((chart) => [...chart.querySelectorAll("text")].filter((text) => {
      const [inner, outer] = [text.getBoundingClientRect(), chart.getBoundingClientRect()];
      return inner.left < outer.left || inner.right > outer.right;
    })).map((text) => text.textContent)"""
    assert visitor.page.locator("svg.chart").count() == 2
    assert visitor.page.locator("svg.chart").evaluate_all(outside) == []


HIDE = """(isHidden) => {
  Object.defineProperty(document, "hidden", { configurable: true, get: () => isHidden });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


def test_more_windows_than_a_browser_opens_connections_all_stay_true(visit, site):
    _, client = site
    client.create_job(job="crowded", profile=uniform_profile(16), workers=8, settings=grid_of(12, 4, 2, Policy.DATA_REROUTING))
    context = visit().context
    pages = [context.new_page() for _ in range(8)]
    for page in pages:
        page.goto("/dashboard/jobs/crowded")
        page.locator("#live", has_text="live").wait_for()
    lose(client, "crowded", "w01")
    for page in pages:
        page.locator("#slot-0-1.slot-mended").wait_for()
    pages[0].close()
    lose(client, "crowded", "w02")
    for page in pages[1:]:
        page.locator("#slot-1-0.slot-mended").wait_for()


def test_a_page_that_nobody_sees_lets_its_stream_go_and_catches_up(visit, site):
    _, client = site
    client.create_job(job="unseen", profile=uniform_profile(16), workers=8, settings=grid_of(12, 4, 2, Policy.DATA_REROUTING))
    visitor = visit()
    page = visitor.page
    with page.expect_request("**/unseen/stream"):
        visitor.go("/dashboard/jobs/unseen")
    with page.expect_event("requestfailed", lambda request: request.url.endswith("/unseen/stream")):
        page.evaluate(HIDE, True)
    lose(client, "unseen", "w01")
    with page.expect_request("**/unseen/stream"):
        page.evaluate(HIDE, False)
    page.locator("#slot-0-1.slot-mended").wait_for()


def test_a_service_that_is_silent_is_not_shown_as_live(visit, site):
    process, _ = site
    visitor = visit()
    visitor.go(HOME)
    visitor.page.locator("#live", has_text="live").wait_for()
    process.process.send_signal(signal.SIGSTOP)
    try:
        visitor.page.evaluate(HIDE, False)
        visitor.page.locator("#live.stale").wait_for()
    finally:
        process.process.send_signal(signal.SIGCONT)
    visitor.page.locator("#live:not(.stale)").wait_for()


def test_a_newer_plan_is_announced_where_the_page_must_not_jump(visit, site):
    _, client = site
    client.create_job(job="announced", profile=uniform_profile(4), workers=4, settings=grid_of(4, 2, 2, Policy.DATA_REROUTING))
    visitor = visit()
    visitor.go("/dashboard/jobs/announced/schedule")
    lose(client, "announced", "w01")
    visitor.page.locator("#newer a").click()
    visitor.page.get_by_text("After: generation 1").wait_for()


@pytest.mark.parametrize("name", ["schedule", "whatif"])
def test_where_the_page_must_not_jump_it_tells_what_became_of_the_plan_and_the_job(visit, site, name):
    _, client = site
    job = f"told-{name}"
    client.create_job(job=job, profile=uniform_profile(4), workers=4, settings=grid_of(4, 2, 2, Policy.DATA_REROUTING))
    lose(client, job, "w01")
    page = (visitor := visit()).page
    visitor.go(f"/dashboard/jobs/{job}/{name}")
    card = page.locator(".card").first.element_handle()
    client.report(job, Report(generation=1, status=ReportStatus.APPLIED))
    page.locator(".headline .chip-good").wait_for()
    client.end(job, Outcome.COMPLETED)
    page.locator("#ended").wait_for()
    assert page.locator(".headline .chips", has_text="completed").count() == 1
    assert card.evaluate("(card) => card.isConnected")


def test_what_is_selected_stays_until_it_is_selected_no_more(visit, site):
    _, client = site
    client.create_job(job="copied", profile=uniform_profile(16), workers=8, settings=grid_of(12, 4, 2, Policy.DATA_REROUTING))
    page = (visitor := visit()).page
    visitor.go("/dashboard/jobs/copied")
    page.get_by_role("heading", name="copied").select_text()
    lose(client, "copied", "w01")
    page.locator("#live", has_text="waits while text is selected").wait_for()
    assert page.evaluate("getSelection().toString()") == "copied"
    assert page.locator("td.slot-mended").count() == 0
    page.get_by_role("heading", name="copied").click()
    page.locator("#slot-0-1.slot-mended").wait_for()
    page.locator("#live", has_text="live").wait_for()


def test_the_list_shows_new_jobs(visit, site):
    _, client = site
    visitor = visit()
    visitor.go("/dashboard")
    client.create_job(job="brand-new", profile=uniform_profile(4), workers=2, settings=grid_of(4, 1, 2))
    visitor.page.locator("#job-brand-new").wait_for()


def test_a_worker_is_asked_to_leave_and_the_page_tells_at_once(visit, site):
    _, client = site
    visitor = visit()
    page = visitor.page
    visitor.go(OVERLAY)
    page.evaluate("window.isTheSamePage = true")
    client.overlay_heartbeat("hospitals", OverlayHeartbeat(worker="w04", received_bytes=32 << 20))
    page.locator("progress").wait_for()
    client.post_overlay_event("hospitals", OverlayEvent(kind=OverlayEventKind.STATE_REPLICATED, id="here", worker="w04"))
    page.locator("progress").wait_for(state="detached")
    assert page.evaluate("window.isTheSamePage")
    page.locator("#leave-w02").press("Enter")
    page.wait_for_url("**/overlay#worker-w02")  # until then the page that was left may tell the same
    page.locator(".detail-row", has_text="sked to leave on the dashboard").wait_for()
    assert page.evaluate("document.activeElement.id") == "worker-w02"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "leave-w04"
    assert client.overlay("hospitals").worker("w02").state is WorkerState.DRAINING


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


def test_what_if_answers_every_click(visit, site):
    _, client = site
    visitor = visit()
    page = visitor.page
    visitor.go(f"{HOME}/whatif")
    before = client.job("rerouted")
    assert "Mark somebody" in page.locator("#reply").inner_text()
    page.locator('label:has(input[name="fail"][value="w00"])').click()
    page.locator("#reply td.slot-mended").nth(1).wait_for()
    assert "fail=w00" in page.url
    page.locator('label:has(input[name="slow"][value="w02"])').focus()
    page.locator('input[name="slow"][value="w02"]').press("Space")
    page.locator("#reply .slot-slow").first.wait_for()
    for worker in (1, 2, 4, 5, 6, 7, 8):
        page.locator(f'input[name="fail"][value="w0{worker}"]').check(force=True)
    page.locator("#reply .notice-bad").wait_for()
    assert client.job("rerouted") == before


@pytest.mark.parametrize("speed", ["", "3"])
def test_what_if_asks_nothing_with_a_speed_that_none_is(visit, speed):
    visitor = visit()
    page = visitor.page
    visitor.go(f"{HOME}/whatif?slow=w00&speed_ratio=0.5")
    answer, address = page.locator("#reply").inner_text(), page.url
    page.clock.install()
    page.locator('input[name="speed_ratio"]').fill(speed)
    page.locator('input[name="speed_ratio"]').press("Tab")
    page.clock.run_for(500)
    assert page.locator("#reply").get_attribute("aria-busy") is None
    assert (page.locator("#reply").inner_text(), page.url) == (answer, address)


def test_what_if_asks_again_until_the_service_answers(visit):
    visitor = visit()
    page = visitor.page
    visitor.go(f"{HOME}/whatif")
    page.locator('label:has(input[name="fail"][value="w02"])').click()
    page.locator("#reply td.slot-mended").nth(1).wait_for()
    visitor.context.set_offline(True)
    page.locator('label:has(input[name="fail"][value="w00"])').click()
    page.locator("#reply", has_text="does not answer").wait_for()
    visitor.context.set_offline(False)
    page.locator("#reply td.slot-mended").nth(2).wait_for()
    assert "fail=w00" in page.url
    visitor.complaints = [text for text in visitor.complaints if "ERR_INTERNET_DISCONNECTED" not in text]


def test_who_is_signed_in_no_more_signs_in_and_goes_on(chromium, tmp_path, monkeypatch):
    monkeypatch.setenv("KINTSUGI_PLANS_AHEAD", "false")
    monkeypatch.setenv("KINTSUGI_REQUIRE_TOKENS", "always")
    database = tmp_path / "kintsugi.sqlite3"
    token = issued(f"sqlite:///{database}", NewToken(name="all", scope=Scope.ADMINISTER))["all"]
    with service(database) as process, Client(process.url, token=token) as client:
        client.create_job(job="guarded", profile=uniform_profile(4), workers=4, settings=grid_of(4, 2, 2))
        visitor = Visitor(chromium, process.url)
        page = visitor.page

        def sign_in():
            page.locator("#token").fill(token)
            page.get_by_role("button", name="Sign in").click()
            page.locator("#live", has_text="live").wait_for()

        try:
            page.goto("/dashboard/jobs/guarded")
            sign_in()
            visitor.context.clear_cookies()
            page.evaluate(HIDE, False)
            sign_in()
            assert urlsplit(page.url).path == "/dashboard/jobs/guarded"
            page.goto("/dashboard/jobs/guarded/whatif")
            visitor.context.clear_cookies()
            page.locator('label:has(input[name="fail"][value="w00"])').click()
            page.locator("#token").wait_for()
            assert urlsplit(page.url).path == "/login"
            sign_in()
            assert page.url.endswith("/dashboard/jobs/guarded/whatif?fail=w00&speed_ratio=0.5")
        finally:
            visitor.context.close()


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


def test_refusals_are_pages_with_a_way_out(visit):
    visitor = visit()
    visitor.page.goto("/dashboard/jobs/nobody")
    visitor.page.get_by_role("link", name="All jobs").click()
    visitor.page.get_by_role("heading", name="Jobs").wait_for()
    visitor.complaints = [text for text in visitor.complaints if "404" not in text]
