"""The dashboard on a phone, by touch alone."""

import pytest

from kintsugi.core.membership import Event, EventKind
from tests.api.dashboard.browser import CUT, HOME, OVERLAY, PHONE, grid_of
from tests.builders import uniform_profile
from tests.chromium import CHROMIUM, MISSING

FINGERTIP = 44
"""Least height of a control, in pixels of CSS."""

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(CHROMIUM is None, reason=MISSING),
]


@pytest.fixture
def phone(visit):
    return visit(viewport=PHONE, has_touch=True, is_mobile=True)


def test_the_name_of_a_slow_worker_is_whole(phone, site):
    _, client = site
    client.create_job(job="slow", profile=uniform_profile(16), workers=8, settings=grid_of(12, 2, 4))
    client.post_event("slow", Event(kind=EventKind.STRAGGLER, id="slow", generation=0, worker="w01", speed_ratio=0.55))
    phone.go("/dashboard/jobs/slow")
    assert phone.page.locator("td .slot-slow").count() == 1
    assert phone.page.locator(".slot-name").evaluate_all(CUT) == []


def test_a_tap_tells_of_slots_and_of_workers_beside_them(phone):
    phone.go(HOME)
    told = phone.page.locator(".inspector")
    phone.page.locator("#slot-1-1").tap()
    assert told.inner_text().startswith("w03 is lost")
    phone.page.locator(".bench .slot", has_text="w08").tap()
    assert told.inner_text().startswith("w08 on")


def test_controls_are_as_high_as_a_fingertip(phone):
    for path in (f"{HOME}/schedule", f"{HOME}/whatif", OVERLAY):
        phone.go(path)
        controls = phone.page.locator("button:visible, .button, input[type=number], .ask label, .pick label")
        heights = controls.evaluate_all("(all) => all.map((each) => each.getBoundingClientRect().height)")
        assert min(heights) >= FINGERTIP, path


def test_two_fingers_magnify_the_page_on_a_chart(phone):
    phone.go(f"{HOME}/schedule")
    box = phone.page.locator(".chart-box").first
    box.scroll_into_view_if_needed()
    place = box.bounding_box()
    x, y = place["x"] + place["width"] / 2, place["y"] + place["height"] / 2
    session = phone.context.new_cdp_session(phone.page)
    for kind, spread in (("touchStart", 20), ("touchMove", 40), ("touchMove", 60), ("touchMove", 80), ("touchEnd", None)):
        fingers = [] if spread is None else [{"x": x + side * spread, "y": y, "id": side + 1} for side in (-1, 1)]
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": fingers})
    phone.page.wait_for_function("visualViewport.scale > 1.1")


def test_why_a_policy_is_impossible_begins_in_sight(phone):
    phone.go(f"{HOME}/why")
    starts = """(cells) => cells.map((cell) => {
      const words = document.createRange();
      words.selectNodeContents(cell);
      return words.getBoundingClientRect().left - cell.getBoundingClientRect().left;
    })"""
    offsets = phone.page.locator(".impossible td").evaluate_all(starts)
    assert offsets
    assert max(offsets) < 1


def test_who_asks_by_the_button_sees_the_answer(phone):
    phone.go(f"{HOME}/whatif")
    page = phone.page
    page.locator('label:has(input[name="fail"][value="w00"])').tap()
    decide = page.get_by_role("button", name="Decide")
    decide.evaluate("(button) => button.scrollIntoView({ block: 'end' })")
    top = "(heading) => heading.getBoundingClientRect().top"
    assert page.locator("#answer").evaluate(top) > PHONE["height"]
    decide.tap()
    assert 0 <= page.locator("#answer").evaluate(top) < PHONE["height"]
