"""The pages, as the service renders them."""

import json
import re
from html import unescape

import pytest

from api.dashboard import formats
from api.settings import Settings
from kintsugi.core import codec
from tests.api.requests import EVENTS, JOB, REPORTS, event, new_job, report, workers_of
from tests.builders import uniform_profile

HOME = "/dashboard/jobs/llama"
PAGES = (HOME, f"{HOME}/schedule", f"{HOME}/why", f"{HOME}/history", f"{HOME}/whatif")
EVIL = '<img src=x onerror="alert(1)">'


@pytest.fixture
def settings(database_url):
    return Settings(database_url=database_url, plans_ahead=False)


def rerouted(**changes):
    """A job of 2 x 2 that answers losses by rerouting."""
    ranges = {"min_dp": 2, "max_dp": 2, "min_pp": 2, "max_pp": 2}
    return new_job(workers=4, settings={"num_microbatches": 8, "ranges": ranges, "policy": "data_rerouting"}, **changes)


def text_of(response):
    assert response.status_code == 200, response.text
    return response.text.replace("\N{NO-BREAK SPACE}", " ")


def test_without_jobs_the_first_page_says_how_to_make_one(client):
    response = client.get("/")
    assert response.url.path == "/dashboard"
    assert "No job yet" in text_of(response)


def test_the_first_page_is_found_with_a_slash_too_many(client):
    response = client.get("/dashboard/", follow_redirects=False)
    assert (response.status_code, response.headers["location"]) == (307, "/dashboard")


def test_the_list_leads_to_every_job(client, job):
    client.post("/v1/jobs", json=new_job(id="another"))
    text = text_of(client.get("/dashboard"))
    assert [f'href="/dashboard/jobs/{name}"' in text for name in ("llama", "another", "third")] == [True, True, False]


def test_jobs_that_ended_have_a_list_of_their_own_and_say_why(client, job):
    client.post(EVENTS, json={"events": [event(f"e{n}", 0, f"w0{n}") for n in range(6)]})
    assert 'id="problem"' in text_of(client.get(HOME))
    client.post(f"{JOB}/ending", json={"outcome": "failed", "by": "Ada", "reason": EVIL})
    assert "/jobs/llama" not in text_of(client.get("/dashboard"))
    assert "/jobs/llama" in text_of(client.get("/dashboard?ended=true"))
    shown = text_of(client.get(HOME))
    assert "This job failed: <bdi>&lt;img" in shown
    assert "by <bdi>Ada</bdi>" in shown
    assert (EVIL in shown, 'id="problem"' in shown) == (False, False)


def test_pages_of_jobs_that_ended_go_on_with_them(client, job, monkeypatch):
    monkeypatch.setattr("api.dashboard.routes.JOBS_PER_PAGE", 1)
    client.post("/v1/jobs", json=new_job(id="another"))
    for name in ("another", "llama"):
        client.post(f"/v1/jobs/{name}/ending", json={"outcome": "completed"})
    first = text_of(client.get("/dashboard?ended=true"))
    second = text_of(client.get(unescape(re.search(r'href="([^"]*after=[^"]*)"', first)[1])))
    assert ("/jobs/another" in first, "/jobs/llama" in second, "No job yet" in text_of(client.get("/dashboard"))) == (
        True,
        True,
        True,
    )


def test_a_long_list_has_pages(client, job, monkeypatch):
    monkeypatch.setattr("api.dashboard.routes.JOBS_PER_PAGE", 1)
    client.post("/v1/jobs", json=new_job(id="another"))
    first = text_of(client.get("/dashboard"))
    second = text_of(client.get(re.search(r'href="([^"]*after=[^"]*)"', first)[1]))
    assert ("/jobs/another" in first, "/jobs/llama" in first) == (True, False)
    assert ("/jobs/another" in second, "/jobs/llama" in second) == (False, True)


@pytest.mark.parametrize("path", ["/dashboard", *PAGES])
def test_pages_let_nothing_in_from_elsewhere(client, job, path):
    response = client.get(path)
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    text = text_of(response)
    assert not re.search(r'(?:src|href|action)="(?:[a-z]+:)?//', text)
    assert not re.search(r"<script(?![^>]*src=)|<style|\sstyle=|\son\w+=", text)


@pytest.mark.parametrize("path", ["/dashboard", *PAGES])
def test_an_unchanged_page_is_not_sent_again(client, job, path):
    tag = client.get(path).headers["etag"]
    assert client.get(path, headers={"If-None-Match": tag}).status_code == 304
    client.post(EVENTS, json=event("a", 0, sorted(workers_of(job["decision"]))[0]))
    assert client.get(path, headers={"If-None-Match": tag}).status_code == 200


def test_names_are_shown_and_never_obeyed(client):
    workers = [{"id": f"{EVIL}{n}", "host": f"h{n}{EVIL}"} for n in range(4)]
    body = rerouted(cluster={"schema_version": 1, "name": EVIL, "workers": workers})
    body["profile"]["name"] = EVIL
    del body["workers"], body["workers_per_host"]
    assert client.post("/v1/jobs", json=body).status_code == 201
    client.post(EVENTS, json=event("a", 0, f"{EVIL}0"))
    client.post(REPORTS, json=report(1, "rejected", reason=EVIL))
    for path in ("/dashboard", *PAGES, f"{HOME}/whatif?fail={EVIL}1&slow={EVIL}2", f"{HOME}/schedule.svg"):
        text = text_of(client.get(path))
        assert "<img src=x" not in text, path
        assert "onerror" not in text.replace("&#34;", "").replace("&quot;", "") or "&lt;img src=x" in text, path


def test_the_grid_tells_dead_and_helping_slots(client):
    client.post("/v1/jobs", json=rerouted())
    client.post(EVENTS, json=event("a", 0, "w01"))
    text = text_of(client.get(HOME))
    assert len(re.findall(r'<td class="slot slot-mended"', text)) == 1
    assert "w01 is lost. Pipeline 0, stage 1, layers 2" in text
    assert "Its micro-batches are rerouted: w03 takes 4." in text
    assert "Takes 4 micro-batches of dead slots beside its own." in text


def test_nothing_of_a_first_plan_is_as_before(client):
    client.post("/v1/jobs", json=rerouted())
    assert "as before" not in text_of(client.get(HOME))
    client.post(EVENTS, json=event("a", 0, "w01"))
    assert "as before" in text_of(client.get(HOME))
    assert "as before" not in text_of(client.get(f"{HOME}?generation=0"))


def test_after_a_restart_state_comes_from_the_checkpoint(client):
    ranges = {"min_dp": 1, "max_dp": 1, "min_pp": 2, "max_pp": 2}
    body = new_job(workers=3, settings={"num_microbatches": 4, "ranges": ranges})
    body["profile"]["recovery"] |= {"checkpoint_interval_seconds": 600.0, "checkpoint_read_bytes_per_second": 1e9}
    client.post("/v1/jobs", json=body)
    decision = client.post(EVENTS, json=event("a", 0, "w01")).json()["decision"]
    assert decision["policy"] == "checkpoint_restart"
    assert decision["migration"]["transfers"] == []
    details = re.findall(r'data-detail="(w02 [^"]*)"', text_of(client.get(HOME)))
    assert len(details) == 1
    assert "New layers, whose state comes from the checkpoint." in details[0]


@pytest.mark.parametrize("page", [HOME, f"{HOME}/why"])
def test_the_time_of_a_search_is_told_where_there_was_one(client, page):
    client.post("/v1/jobs", json=rerouted())
    assert re.search(r"<dt>Search</dt><dd>[\d.]+ m?s</dd>", text_of(client.get(page)))
    decision = client.post(EVENTS, json=event("a", 0, "w01")).json()["decision"]
    assert decision["search"]["elapsed_seconds"] == 0
    assert "<dt>Search</dt><dd>none</dd>" in text_of(client.get(page))


def test_a_slot_that_died_earlier_keeps_its_name(client):
    ranges = {"min_dp": 3, "max_dp": 3, "min_pp": 2, "max_pp": 2}
    client.post("/v1/jobs", json=new_job(settings={"num_microbatches": 6, "ranges": ranges, "policy": "data_rerouting"}))
    for generation, worker in enumerate(("w01", "w02")):
        client.post(EVENTS, json=event(worker, generation, worker))
        client.post(REPORTS, json=report(generation + 1))
    text = text_of(client.get(HOME))
    assert "w01 is lost." in text
    assert "w02 is lost." in text


def test_spare_lost_and_slow_workers_stand_beside_the_grid(client):
    ranges = {"min_dp": 2, "max_dp": 2, "min_pp": 2, "max_pp": 2}
    client.post("/v1/jobs", json=new_job(settings={"num_microbatches": 8, "ranges": ranges}))
    client.post(EVENTS, json=event("slow", 0, "w03", "straggler", speed_ratio=0.9))
    client.post(EVENTS, json=event("a", 1, "w00"))
    text = text_of(client.get(HOME))
    assert 'aria-label="Spare workers"' in text
    assert 'aria-label="Lost workers"' in text
    assert "0.9×" in text  # noqa: RUF001  # as it stands on the page


def test_a_worker_that_leaves_and_still_serves_is_not_shown_as_lost(client):
    client.post("/v1/jobs", json=rerouted())
    client.post(EVENTS, json=event("a", 0, "w01", "worker_draining", deadline_seconds=60))
    text = text_of(client.get(HOME))
    assert "w01 is leaving and still serves its state. Pipeline 0, stage 1" in text
    assert "slot-mended" not in text
    assert "Leaving workers that stay" in text_of(client.get(f"{HOME}/whatif"))
    assert "Lost workers that come back" not in text_of(client.get(f"{HOME}/whatif?fail=w02"))
    rows = client.get(f"{HOME}/schedule.json").json()["panels"][-1]["rows"]
    assert [row["is_leaving"] for row in rows] == [False, True, False, False]
    client.post(EVENTS, json=event("b", 1, "w01"))
    text = text_of(client.get(HOME))
    assert "w01 is lost." in text
    assert "slot-leaving" not in text
    assert "Lost workers that come back" in text_of(client.get(f"{HOME}/whatif"))
    assert not any(row["is_leaving"] for row in client.get(f"{HOME}/schedule.json").json()["panels"][-1]["rows"])


def test_a_leaving_worker_without_a_slot_stands_beside_the_grid(client, job):
    client.post(EVENTS, json=event("a", 0, "w01", "worker_draining"))
    text = text_of(client.get(HOME))
    assert 'aria-label="Leaving workers"' in text
    assert 'aria-label="Lost workers"' not in text


def test_hosts_count_while_one_of_their_workers_lives(client, job):
    for generation, worker in enumerate(("w00", "w01", "w02")):
        client.post(EVENTS, json=event(worker, generation, worker))
    text = text_of(client.get(HOME))
    assert re.search(r"<dt>Workers</dt><dd>3 <span[^>]*>of 6<", text)
    assert re.search(r"<dt>Hosts</dt><dd>2 <span[^>]*>of 3<", text)


def test_a_job_without_a_plan_says_why(client):
    client.post("/v1/jobs", json=new_job(settings={"num_microbatches": 8, "ranges": {"min_pp": 4}}))
    workers = [event(f"e{n}", 0, f"w0{n}") for n in range(3)]
    assert client.post(EVENTS, json={"events": workers}).status_code == 409
    problem = client.get(JOB).json()["summary"]["problem"]
    text = text_of(client.get(HOME))
    assert 'class="notice notice-bad"' in text
    assert problem["message"].split(";")[0] in text.replace("&#39;", "'")
    assert "slot-lost" in text
    assert "Events without a plan" in text_of(client.get(f"{HOME}/history"))


def test_history_says_how_many_events_without_a_plan_it_leaves_out(client):
    client.post("/v1/jobs", json=new_job(settings={"num_microbatches": 8, "ranges": {"min_pp": 4}}))
    client.post(EVENTS, json={"events": [event(f"e{n}", 0, f"w0{n}") for n in range(3)]})
    for number in range(10):
        client.post(EVENTS, json=event(f"s{number}", 0, "w04", "straggler", speed_ratio=0.5 + number / 100))
    text = text_of(client.get(f"{HOME}/history"))
    shown = text.split('aria-labelledby="unanswered"')[1].split("</ul>")[0].count("<time")
    assert f"and {3 + 10 - shown} earlier events" in text


def test_a_plan_that_trainers_rejected_is_marked(client):
    client.post("/v1/jobs", json=rerouted())
    client.post(EVENTS, json=event("a", 0, "w01"))
    assert "not applied yet" in text_of(client.get(HOME))
    client.post(REPORTS, json=report(1, "rejected", reason="no memory"))
    assert re.search(r"chip-bad.*rejected", text_of(client.get(HOME)))
    assert "Rejected: <bdi>no memory</bdi>" in text_of(client.get(f"{HOME}/history"))


def test_reasons_show_every_alternative(client, job):
    client.post(EVENTS, json=event("a", 0, sorted(workers_of(job["decision"]))[0]))
    decision = client.get(JOB).json()["decision"]
    rows = re.findall(r'<tr class="([^"]*)">\s*<th scope="row">', text_of(client.get(f"{HOME}/why")))
    assert len(rows) == len(decision["alternatives"])
    assert rows[0] == "chosen"
    assert rows.count("impossible") == sum(not each["feasible"] for each in decision["alternatives"])


def test_history_tells_what_was_measured(client, job):
    lost = sorted(workers_of(job["decision"]))[0]
    estimated = client.post(EVENTS, json=event("a", 0, lost)).json()["decision"]["estimate"]["iteration_seconds"]
    measured = {"iteration_seconds": 1.25 * estimated, "phase_seconds": {"detected": 0.5, "resumed": 2.25}}
    client.post(REPORTS, json=report(1, measured=measured))
    text = text_of(client.get(f"{HOME}/history"))
    assert f"worker failed <code>{lost}</code>" in text
    assert "+25.0 %" in text
    assert re.search(r"resumed</span> 2\.25 s", text)
    assert text.count('<rect class="phase') == 2


def test_differences_of_step_times_stand_above_or_below_their_marks(client, job):
    """Beside them they ran into the next generation's."""
    for generation, (worker, ratio) in enumerate((("w00", 1.25), ("w01", 0.75))):
        decided = client.post(EVENTS, json=event(worker, generation, worker)).json()["decision"]
        measured = {"iteration_seconds": ratio * decided["estimate"]["iteration_seconds"]}
        client.post(REPORTS, json=report(generation + 1, measured=measured))
    text = text_of(client.get(f"{HOME}/history"))
    marks = re.findall(r'<circle class="measured" cx="([^"]*)" cy="([^"]*)" .*?<text class="tick" x="([^"]*)" y="([^"]*)"', text)
    assert [x == label_x for x, _, label_x, _ in marks] == [True, True]
    assert [float(label_y) > float(y) for _, y, _, label_y in marks] == [False, True]


def chapters_of(client):
    """Every generation on the page of the past: its status, and all that is said of it in plain words."""
    parts = text_of(client.get(f"{HOME}/history")).split('<li class="chapter">')[1:]
    found = {int(re.search(r"Generation (\d+)", part)[1]): part.split("</li>")[0] for part in parts}
    status = {number: re.findall(r'class="chip[^"]*">([^<]*)<', part)[-1] for number, part in found.items()}
    words = {number: " ".join(re.sub(r"<[^>]*>", " ", re.sub("</?bdi>", "", part)).split()) for number, part in found.items()}
    return status, words


def test_history_says_how_each_plan_stands_and_what_became_of_its_state(client):
    client.post("/v1/jobs", json=new_job())
    client.post(EVENTS, json=event("a", 0, "w00"))
    client.post(REPORTS, json=report(1))
    client.post(EVENTS, json=event("b", 1, "w01"))
    client.post(EVENTS, json=event("c", 2, "w02"))
    status, words = chapters_of(client)
    assert status == {0: "superseded", 1: "applied", 2: "superseded", 3: "approved"}
    told = [client.get(f"{JOB}/plans/{generation}").json()["status"] for generation in range(4)]
    assert told == [status[generation] for generation in range(4)]
    assert "Ran until a later plan took its place." in words[0]
    assert "State moved" in words[1]
    assert "Never ran" in words[2]
    assert "State it would have moved" in words[2]
    assert "State to move" in words[3]


def test_history_says_who_refused_a_plan_and_why(client):
    client.post("/v1/jobs", json=new_job(handling={"requires_approval": True}))
    client.post(EVENTS, json=event("a", 0, "w00"))
    assert chapters_of(client)[0][1] == "proposed"
    refusal = {"decision": "refuse", "by": "Ada", "reason": "not during the demo", "replan": True}
    assert client.post(f"{JOB}/plans/1/approval", json=refusal).status_code == 200
    assert client.post(f"{JOB}/plans/2/approval", json={**refusal, "by": "Bob", "replan": False}).status_code == 200
    status, words = chapters_of(client)
    assert status == {0: "applied", 1: "superseded", 2: "refused"}
    assert "Refused by Ada: not during the demo" in words[1]
    assert "Refused by Bob: not during the demo" in words[2]
    assert "State it would have moved" in words[2]


def test_history_tells_advice_from_plans_that_run(client):
    client.post("/v1/jobs", json=new_job(handling={"advise_only": True}))
    client.post(EVENTS, json=event("a", 0, "w00"))
    status, words = chapters_of(client)
    assert status == {0: "superseded", 1: "advised"}
    assert "Never ran" in words[0]


@pytest.mark.parametrize("path", [HOME, f"{HOME}/why", f"{HOME}/history"])
def test_boxes_that_scroll_are_found_again_when_the_page_changes(client, job, path):
    boxes = re.findall(r'<div class="scroll"[^>]*>', text_of(client.get(path)))
    assert boxes
    assert all(" id=" in box for box in boxes), "Firefox stops at them by the Tab key"


def test_history_has_pages(client, job, monkeypatch):
    monkeypatch.setattr("api.dashboard.past.SHOWN_GENERATIONS", 2)
    for generation, worker in enumerate(("w00", "w01")):
        client.post(EVENTS, json=event(worker, generation, worker))
    latest = text_of(client.get(f"{HOME}/history"))
    assert re.findall(r"Generation (\d)</a>", latest) == ["2", "1"]
    assert re.findall(r"Generation (\d)</a>", text_of(client.get(f"{HOME}/history?below=1"))) == ["0"]
    assert "?below=1" in latest


def test_an_earlier_generation_is_shown_as_it_was(client):
    client.post("/v1/jobs", json=rerouted())
    client.post(EVENTS, json=event("a", 0, "w01"))
    text = text_of(client.get(f"{HOME}?generation=0"))
    assert "slot-mended" not in text
    assert "Generation 0 of 1" in text


def test_the_schedule_is_the_estimators_own(client):
    client.post("/v1/jobs", json=rerouted())
    client.post(EVENTS, json=event("a", 0, "w01"))
    before, after = client.get(f"{HOME}/schedule.json").json()["panels"]
    assert after["end_seconds"] == client.get(JOB).json()["decision"]["estimate"]["iteration_seconds"]
    assert [row["is_lost"] for row in after["rows"]] == [False, True, False, False]
    passes = [bar for row in after["rows"] for bar in row["bars"] if bar[0] in (0, 1, 2)]
    assert len({(kind, microbatch, stage) for kind, microbatch, stage, *_ in passes if kind == 0}) == 8 * 2
    helpers = {row["worker"] for row in after["rows"] for bar in row["bars"] if bar[5]}
    assert helpers == {"w03"}
    assert not any(bar[5] for row in before["rows"] for bar in row["bars"])


def test_the_schedule_follows_what_no_plan_answers(client):
    client.post("/v1/jobs", json=new_job(workers=2, settings={"num_microbatches": 8, "ranges": {"min_pp": 2}}))
    assert client.post(EVENTS, json=event("a", 0, "w01")).status_code == 409
    before = client.get(f"{HOME}/schedule.json").json()["panels"][0]["end_seconds"]
    assert client.post(EVENTS, json=event("b", 0, "w00", "straggler", speed_ratio=0.25)).status_code == 409
    after = client.get(f"{HOME}/schedule.json").json()["panels"][0]["end_seconds"]
    assert after > 2 * before
    assert f"step: {formats.seconds(after)}" in text_of(client.get(f"{HOME}/schedule.svg"))


def test_the_schedule_travels_compressed_to_those_who_take_it(client, job):
    plain = client.get(f"{HOME}/schedule.json", headers={"Accept-Encoding": "identity"})
    packed = client.get(f"{HOME}/schedule.json", headers={"Accept-Encoding": "gzip"})
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert plain.json() == packed.json()


def test_the_schedule_can_be_taken_along_as_a_trace(client, job):
    address = re.search(r'href="([^"]+/trace)"', text_of(client.get(f"{HOME}/schedule")))[1]
    assert client.get(address).json()["traceEvents"]


def test_the_picture_stands_in_where_scripts_do_not_run(client, job):
    picture = client.get(f"{HOME}/schedule.svg")
    assert picture.headers["content-type"] == "image/svg+xml"
    assert text_of(picture).startswith("<svg")


def test_what_if_is_the_decision_of_the_api_and_stores_nothing(client):
    client.post("/v1/jobs", json=rerouted())
    thought = client.post("/v1/whatif", json={"job": "llama", "fail": ["w01"], "slow": {"w02": 0.5}}).json()
    text = text_of(client.get(f"{HOME}/whatif?fail=w01&slow=w02&speed_ratio=0.5"))
    assert thought["reason"].split(":")[1].strip(".") in text
    assert text.count("slot-mended") == 2  # in the legend and in the grid
    assert client.get(JOB).json()["summary"]["generation"] == 0


def test_what_if_says_what_the_speed_of_slow_workers_is_measured_by(client, job):
    assert "times the profile" in text_of(client.get(f"{HOME}/whatif"))


def test_what_if_nobody_could_go_on(client, job):
    everybody = "&".join(f"fail=w0{n}" for n in range(6))
    text = text_of(client.get(f"{HOME}/whatif?{everybody}"))
    assert re.search(r'id="problem">(Infeasible|State lost)', text)


def test_what_if_whole_hosts_fail_and_lost_workers_return(client, job):
    assert 'name="fail_host" value="h01"' in text_of(client.get(f"{HOME}/whatif"))
    client.post(EVENTS, json=event("a", 0, "w05"))
    assert 'name="join" value="w05"' in text_of(client.get(f"{HOME}/whatif?join=w05&fail_host=h00"))


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/dashboard/jobs/nobody", 404, "there is no job of this id"),
        (f"{HOME}?generation=7", 404, "no decision of this generation"),
        (f"{HOME}?generation=-1", 422, "<code>generation</code> <code>-1</code>: must be greater than or equal to 0"),
        (f"{HOME}/whatif?fail=w77", 404, "w77"),
        (f"{HOME}/whatif?speed_ratio=0", 422, "speed_ratio"),
        ("/dashboard/nowhere", 404, "there is no such page"),
        (f"{HOME}/nowhere", 404, "there is no such page"),
        (f"{HOME}/", 404, "there is no such page"),
        ("/dashboard/static/../app.py", 404, ""),
        ("/dashboard/static/..%2froutes.py", 404, ""),
        ("/dashboard/static/none.css", 404, "is no file of the dashboard"),
    ],
)
def test_refusals_are_pages_too(client, job, path, status, words):
    response = client.get(path)
    assert response.status_code == status
    if words:
        assert response.headers["content-type"].startswith("text/html")
        assert words in response.text
        assert "default-src 'none'" in response.headers["content-security-policy"]


def test_style_and_scripts_are_files_of_this_service(client, job):
    text = client.get(HOME).text
    files = set(re.findall(r'(?:src|href)="(/dashboard/static/[^"]+)"', text))
    assert len(files) >= 6
    for path in files:
        response = client.get(path)
        assert response.status_code == 200
        assert response.headers["x-content-type-options"] == "nosniff"


def test_large_jobs_have_no_picture_but_a_chart(client):
    ranges = {"min_dp": 33, "max_dp": 33, "min_pp": 2, "max_pp": 2}
    client.post("/v1/jobs", json=new_job(workers=66, settings={"num_microbatches": 66, "ranges": ranges}))
    assert client.get(f"{HOME}/schedule.svg").status_code == 404
    assert "<img" not in text_of(client.get(f"{HOME}/schedule"))
    assert len(client.get(f"{HOME}/schedule.json").json()["panels"][0]["rows"]) == 66
    assert "grid-dense" in text_of(client.get(HOME))


def test_the_openapi_document_is_about_the_api_alone(client):
    assert not [path for path in client.get("/v1/openapi.json").json()["paths"] if "dashboard" in path]


def test_an_adopted_plan_is_shown(client):
    profile = codec.encode(uniform_profile(4))
    stages = [[{"layer_start": 0, "layer_stop": 1, "worker": "w00"}, {"layer_start": 1, "layer_stop": 4, "worker": "w01"}]]
    plan = {"pipelines": [{"num_microbatches": 8, "stages": each} for each in stages]}
    assert client.post("/v1/jobs", json=new_job(profile=profile, plan=plan)).status_code == 201
    assert json.loads(client.get(f"{HOME}/schedule.json").content)["panels"][0]["title"].startswith("Now")
    assert "The plan that runs already was adopted" in text_of(client.get(HOME))


def test_texts_that_are_no_whole_characters_are_shown_escaped(client):
    """JSON can say half of a pair of code units; UTF-8 cannot, and a page of such a job would be an error for ever."""
    stages = [{"layer_start": 0, "layer_stop": 4, "worker": "w00"}]
    idle = [{"worker": "w01", "reason": "spare \ud83d"}]
    plan = {"pipelines": [{"num_microbatches": 8, "stages": stages}], "idle_workers": idle}
    headers = {"Content-Type": "application/json"}
    assert client.post("/v1/jobs", content=json.dumps(new_job(plan=plan)), headers=headers).status_code == 201
    assert r"spare \ud83d" in text_of(client.get(HOME))
    ending = {"outcome": "failed", "by": "Ada", "reason": "disk \udcff"}
    assert client.post(f"{JOB}/ending", content=json.dumps(ending), headers=headers).status_code == 200
    for page in ("", "/schedule", "/why", "/history", "/whatif"):
        assert r"disk \udcff" in text_of(client.get(f"{HOME}{page}"))


def test_texts_that_turn_the_direction_of_letters_turn_none_of_the_services_own(client):
    """What stands behind such a mark would be read backwards, the moment and the name of who said it among it."""
    turning = "\u2069\u2066\u202ednab lufhtiaf"
    client.post("/v1/jobs", json=rerouted())
    client.post(EVENTS, json=event("a", 0, "w01"))
    assert client.post(REPORTS, json=report(1, "rejected", reason=turning)).status_code == 201
    assert client.post(f"{JOB}/ending", json={"outcome": "failed", "by": "Ada", "reason": turning}).status_code == 200
    shown = r"<bdi>\u2069\u2066\u202ednab lufhtiaf</bdi>"
    history = text_of(client.get(f"{HOME}/history"))
    assert f"This job failed: {shown}. " in history
    assert f"Rejected: {shown}</p>" in history
    assert not set(turning[:3]) & set(history)
