"""The dashboard in a real browser: pages follow what happens, and answer what they are asked."""

import signal
from urllib.parse import urlsplit

import pytest

from api.access.tokens import NewToken, Scope
from kintsugi.client import Client
from kintsugi.core.ending import Outcome
from kintsugi.core.messages import Report, ReportStatus
from kintsugi.core.overlay import WorkerState
from kintsugi.core.overlay_messages import OverlayEvent, OverlayEventKind, OverlayHeartbeat
from kintsugi.core.plan import Policy
from tests.api.access.world import issued
from tests.api.dashboard.browser import HOME, OVERLAY, Visitor, grid_of, lose
from tests.builders import uniform_profile
from tests.chromium import CHROMIUM, MISSING
from tests.services import service

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(CHROMIUM is None, reason=MISSING),
]


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
    asked: list[str] = []
    page.evaluate("window.isTheSamePage = true")
    client.overlay_heartbeat("hospitals", OverlayHeartbeat(worker="w04", received_bytes=32 << 20))
    page.locator("progress").wait_for()
    client.post_overlay_event("hospitals", OverlayEvent(kind=OverlayEventKind.STATE_REPLICATED, id="here", worker="w04"))
    page.locator("progress").wait_for(state="detached")
    assert page.evaluate("window.isTheSamePage")
    page.once("dialog", lambda dialog: dialog.dismiss())
    page.locator("#leave-w02").press("Enter")
    assert page.evaluate("document.activeElement.id") == "leave-w02"
    assert client.overlay("hospitals").worker("w02").state is not WorkerState.DRAINING
    page.once("dialog", lambda dialog: asked.append(dialog.message) or dialog.accept())
    page.locator("#leave-w02").press("Enter")
    page.wait_for_url("**/overlay#worker-w02")  # until then the page that was left may tell the same
    page.locator(".detail-row", has_text="sked to leave on the dashboard").wait_for()
    assert page.evaluate("document.activeElement.id") == "worker-w02"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "leave-w04"
    assert asked == ["Ask w02 to hand over and go?"]
    assert client.overlay("hospitals").worker("w02").state is WorkerState.DRAINING


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


def test_what_if_answers_a_click_that_came_before_its_script(visit):
    visitor = visit()
    page = visitor.page
    held = []

    def hold(route):
        held.append(route)

    page.route("**/study.js*", hold)
    with page.expect_request("**/study.js*"):
        visitor.go(f"{HOME}/whatif")
    page.locator('label:has(input[name="fail"][value="w00"])').click()
    held.pop().continue_()
    page.locator("#reply td.slot-mended").nth(1).wait_for()
    assert "fail=w00" in page.url


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

        def forget():
            """While nobody sees the page: else it may ask by itself before it is told to, and go where one signs in."""
            page.evaluate(HIDE, True)
            visitor.context.clear_cookies()

        try:
            page.goto("/dashboard/jobs/guarded")
            sign_in()
            forget()
            page.evaluate(HIDE, False)
            sign_in()
            assert urlsplit(page.url).path == "/dashboard/jobs/guarded"
            page.goto("/dashboard/jobs/guarded/whatif")
            page.locator("#live", has_text="live").wait_for()
            forget()
            page.locator('label:has(input[name="fail"][value="w00"])').click()
            page.locator("#token").wait_for()
            assert urlsplit(page.url).path == "/login"
            sign_in()
            assert page.url.endswith("/dashboard/jobs/guarded/whatif?fail=w00&speed_ratio=0.5")
        finally:
            visitor.context.close()
