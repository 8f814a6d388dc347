"""Webhooks against a real receiver: what is told and how it is signed, what follows when it fails, and what is seen of it."""

import base64
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest
import structlog
from cloudevents.core.bindings.http import HTTPMessage, from_http_event
from cloudevents.core.formats.json import JSONFormat
from pydantic import ValidationError
from sqlalchemy import update
from standardwebhooks import Webhook as Verifier
from starlette.testclient import TestClient

from api.app import create_app
from api.settings import Settings
from api.storage.tables import WEBHOOKS
from api.webhooks.courier import NOT_COUNTED, TAKEN_BACK
from tests.api.http.test_bad_input import assert_is_problem
from tests.api.requests import EVENTS, JOB, event, new_job
from tests.api.webhooks.receiver import PATIENCE_SECONDS, receiver
from tests.patience import eventually
from tests.services import service

HOOKS = f"{JOB}/webhooks"
SECRET = f"whsec_{base64.b64encode(b'0123456789abcdef0123456789abcdef').decode()}"


@pytest.fixture
def settings(settings):
    return settings.model_copy(update={"webhook_first_retry_seconds": 0.01, "webhook_timeout_seconds": 5.0, "plans_ahead": False})


def add(client, url, **changes):
    response = client.post(HOOKS, json={"id": "site", "url": url, "secret": SECRET, **changes})
    assert response.status_code == 201, response.text
    return response.json()


def deliveries(client, **parameters):
    return client.get(f"{HOOKS}/site/deliveries", params=parameters).json()["deliveries"]


def settled(client, number):
    """The deliveries once `number` of them came to an end."""
    for _ in range(3_000):
        found = [delivery for delivery in deliveries(client) if delivery["status"] != "pending"]
        if len(found) >= number:
            return found
        threading.Event().wait(0.01)
    raise AssertionError(deliveries(client))


def test_a_new_plan_is_told_as_a_signed_cloud_event(client, job):
    with receiver() as site:
        add(client, f"{site.url}/hook?a=b")
        answer = client.post(EVENTS, json=event("a", 0, "w00")).json()
        (got,) = site.wait_for(1)
        (delivery,) = settled(client, 1)
    assert got.path == "/hook?a=b"
    Verifier(SECRET).verify(got.body, got.headers)
    own_id = f"plan_decided.1@{answer['decided_at']}"
    assert got.headers["webhook-id"] == f"llama.site.{own_id}"
    told = from_http_event(HTTPMessage(got.headers, got.body.encode()), JSONFormat())
    assert (told.get_id(), told.get_source(), told.get_type()) == (own_id, JOB, "kintsugi.plan_decided")
    assert told.get_subject() == "plans/1"
    assert told.get_specversion() == "1.0"
    assert told.get_time().isoformat().replace("+00:00", "Z") == answer["decided_at"]
    data = told.get_data()
    assert (data["job"], data["generation"], data["policy"]) == ("llama", 1, answer["decision"]["policy"])
    assert client.get(data["plan"]).json()["decision"]["reason"] == data["reason"]
    assert (delivery["status"], delivery["attempts"], delivery["last_status"]) == ("delivered", 1, 204)


@pytest.mark.usefixtures("talkative")
def test_the_log_says_whose_delivery_it_was(client, job):
    with structlog.testing.capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines, receiver() as site:
        add(client, site.url)
        client.post(EVENTS, json=event("a", 0, "w00"))
        settled(client, 1)
    (line,) = [line for line in lines if line["event"] == "webhook"]
    assert (line["job"], line["generation"], line["outcome"]) == ("llama", 1, "delivered")


@pytest.mark.usefixtures("talkative")
def test_the_log_says_no_outcome_of_an_attempt_that_does_not_count(client, job):
    with structlog.testing.capture_logs() as lines, receiver(status_of=lambda number: 204 if number else 500) as site:
        add(client, site.url)
        site.open.clear()
        client.post(EVENTS, json=event("a", 0, "w00"))
        site.wait_for(1)
        assert client.put(f"{HOOKS}/site", json={"url": site.url, "secret": SECRET}).status_code == 200
        site.open.set()
        settled(client, 1)
    told = [(line["event"], line.get("outcome")) for line in lines if line.get("delivery") and line["log_level"] == "info"]
    assert told == [(NOT_COUNTED, None), ("webhook", "delivered")]


@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_nothing_is_sent_to_where_a_webhook_led_once_its_change_is_answered(client, job, monkeypatch, method):
    """Its receiver may take long to be found, or to agree on encryption."""
    looked_for, goes_on, found = threading.Event(), threading.Event(), socket.getaddrinfo

    def slowly(host, *arguments, **named):
        if host != "slow.example":
            return found(host, *arguments, **named)
        looked_for.set()
        goes_on.wait(PATIENCE_SECONDS)
        return found("127.0.0.1", *arguments, **named)

    with structlog.testing.capture_logs() as lines, receiver() as old, receiver() as new:
        add(client, old.url)
        with client.app.state.desk.service.store.database.writing() as connection:
            connection.execute(update(WEBHOOKS).values(url=old.url.replace("127.0.0.1", "slow.example")))
        monkeypatch.setattr(socket, "getaddrinfo", slowly)
        client.post(EVENTS, json=event("a", 0, "w00"))
        assert looked_for.wait(PATIENCE_SECONDS)
        body = {"url": new.url, "secret": SECRET} if method == "PUT" else None
        assert client.request(method, f"{HOOKS}/site", json=body).is_success
        goes_on.set()
        taken_back = eventually(lambda: [line for line in lines if line["event"] == TAKEN_BACK], lambda told: told or old.received)
        assert (len(taken_back), old.received) == (1, [])
        if method == "PUT":
            new.wait_for(1)
            assert settled(client, 1)[0]["attempts"] == 1


def test_a_webhook_that_is_not_as_it_was_stored_holds_up_no_other(app, client, job):
    with receiver() as site:
        for name in ("site", "other"):
            add(client, site.url, id=name)
        with app.state.desk.service.store.database.writing() as connection:
            connection.execute(update(WEBHOOKS).where(WEBHOOKS.c.id == "site").values(secret="damaged"))
        client.post(EVENTS, json=event("a", 0, "w00"))
        site.wait_for(1)
        while not (delivery := deliveries(client)[0])["attempts"]:
            threading.Event().wait(0.01)
        assert (delivery["status"], delivery["last_status"]) == ("pending", None)
        assert delivery["last_error"].startswith("cannot be sent as it is stored")
        assert client.put(f"{HOOKS}/site", json={"url": site.url, "secret": SECRET}).status_code == 200
        site.wait_for(2)
        settled(client, 1)


def test_the_end_of_a_job_is_told(client, job):
    with receiver() as site:
        add(client, site.url, kinds=["job_ended"])
        client.post(EVENTS, json=event("a", 0, "w00"))
        record = client.post(f"{JOB}/ending", json={"outcome": "failed", "reason": "out of data"}).json()
        (got,) = site.wait_for(1)
    body = JSONFormat().read(None, got.body)
    assert (body.get_id(), body.get_type(), body.get_subject()) == (
        f"job_ended.2@{record['received_at']}",
        "kintsugi.job_ended",
        "log/2",
    )
    assert body.get_data() == {"job": "llama", "number": 2, "generation": 1, "ending": record["ending"]}


def test_a_missing_plan_is_told(client, job):
    with receiver() as site:
        add(client, site.url, kinds=["plan_missing"])
        lost = {"events": [event(f"e{n}", 0, f"w0{n}") for n in range(6)]}
        problem = assert_is_problem(client.post(EVENTS, json=lost), 409)
        (got,) = site.wait_for(1)
    body = JSONFormat().read(None, got.body)
    assert body.get_type() == "kintsugi.plan_missing"
    assert body.get_data()["problem"]["code"] == problem["code"]


def test_what_happened_before_is_not_told(client, job):
    client.post(EVENTS, json=event("a", 0, "w00"))
    with receiver() as site:
        add(client, site.url)
        client.post(EVENTS, json=event("b", 1, "w01"))
        (got,) = site.wait_for(1)
    assert got.headers["webhook-id"].startswith("llama.site.plan_decided.2@")


def test_failures_are_retried_with_the_same_id_and_body(client, job):
    with receiver(status_of=lambda number: [500, 302, 404][number] if number < 3 else 200) as site:
        add(client, site.url)
        client.post(EVENTS, json=event("a", 0, "w00"))
        got = site.wait_for(4)
        (delivery,) = settled(client, 1)
        assert len(site.received) == 4
    assert {(each.path, each.body, each.headers["webhook-id"]) for each in got} == {
        ("/", got[0].body, got[0].headers["webhook-id"])
    }
    for each in got:
        Verifier(SECRET).verify(each.body, each.headers)
    assert (delivery["status"], delivery["attempts"]) == ("delivered", 4)


def test_a_receiver_that_is_away_and_comes_back(client, job):
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        add(client, f"http://127.0.0.1:{port}")
        client.post(EVENTS, json=event("a", 0, "w00"))
        while not deliveries(client) or deliveries(client)[0]["attempts"] < 2:
            threading.Event().wait(0.01)
        assert deliveries(client)[0]["last_error"]
    with receiver(port) as site:
        site.wait_for(1)
        settled(client, 1)


@pytest.mark.parametrize(
    ("scheme", "answer", "told"),
    [
        ("http", b"", "the receiver closed the connection without an answer"),
        ("https", b"", "the receiver closed the connection without an answer"),
        ("http", b"HTTP/1.1 200 OK\r\nits secret\r\n\r\n", "the receiver's answer is not HTTP"),
    ],
)
def test_a_receiver_that_breaks_off_or_speaks_no_http_is_said_to_do_so(client, job, scheme, answer, told):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def break_off():
            with server.accept()[0] as connection:
                connection.recv(1)
                if answer:
                    connection.sendall(answer)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(65_536):
                        pass  # else it would be reset, and the answer lost

        with ThreadPoolExecutor(1) as threads:
            threads.submit(break_off)
            add(client, f"{scheme}://127.0.0.1:{server.getsockname()[1]}/")
            client.post(EVENTS, json=event("a", 0, "w00"))
            for _ in range(3_000):
                (delivery,) = deliveries(client) or [{"attempts": 0}]
                if delivery["attempts"]:
                    break
                threading.Event().wait(0.01)
    assert delivery["last_error"] == told


def test_gone_is_final_and_a_dead_delivery_is_seen_and_sent_again(client, job):
    with receiver(status_of=lambda number: 410 if number == 0 else 200) as site:
        add(client, site.url)
        client.post(EVENTS, json=event("a", 0, "w00"))
        (dead,) = settled(client, 1)
        assert (dead["status"], dead["last_status"], dead["attempts"]) == ("dead", 410, 1)
        assert deliveries(client, status="dead") == [dead]
        assert deliveries(client, status="delivered") == []
        again = client.post(f"{HOOKS}/site/deliveries/{dead['id']}/retry")
        assert again.json()["status"] == "pending"
        first, second = site.wait_for(2)
        assert settled(client, 1)[0]["status"] == "delivered"
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert_is_problem(client.post(f"{HOOKS}/site/deliveries/nothing/retry"), 404)


def test_giving_up_after_the_time_for_retries(settings):
    with (
        TestClient(create_app(settings.model_copy(update={"webhook_retry_seconds": 0.0}))) as client,
        receiver(status_of=lambda _: 500) as site,
    ):
        client.post("/v1/jobs", json=new_job())
        add(client, site.url)
        client.post(EVENTS, json=event("a", 0, "w00"))
        (dead,) = settled(client, 1)
    assert (dead["status"], dead["last_error"]) == ("dead", "the receiver answered 500")


def test_a_slow_receiver_holds_up_nobody_else_and_is_given_its_time_alone(settings):
    quick = settings.model_copy(update={"webhook_timeout_seconds": 0.2})
    with TestClient(create_app(quick)) as client, receiver() as slow, receiver() as other:
        client.post("/v1/jobs", json=new_job())
        slow.open.clear()
        add(client, slow.url)
        add(client, other.url, id="other")
        client.post(EVENTS, json=event("a", 0, "w00"))
        other.wait_for(1)
        slow.wait_for(2)
        assert deliveries(client)[0]["last_error"] == "no answer within 0.2 s"
        slow.open.set()
        settled(client, 1)


@pytest.mark.both_databases
def test_what_was_not_sent_when_the_service_stopped_is_sent_by_the_next(settings):
    with receiver() as site:
        away = settings.model_copy(update={"host": "0.0.0.0", "require_tokens": "never"})  # may not send to loopback
        with TestClient(create_app(settings)) as client:
            client.post("/v1/jobs", json=new_job())
            add(client, site.url)
        with TestClient(create_app(away)) as client:
            client.post(EVENTS, json=event("a", 0, "w00"))
            while not deliveries(client) or not deliveries(client)[0]["attempts"]:
                threading.Event().wait(0.01)
            assert "KINTSUGI" not in deliveries(client)[0]["last_error"]
            assert site.received == []
        with TestClient(create_app(settings)) as client:
            site.wait_for(1)
            settled(client, 1)


@pytest.mark.both_databases
def test_several_services_send_each_delivery_once(settings):
    with receiver() as site, TestClient(create_app(settings)) as one, TestClient(create_app(settings)) as two:
        one.post("/v1/jobs", json=new_job())
        for number in range(5):
            add(one, site.url, id=f"site{number}")
        add(one, site.url)
        for generation, worker in enumerate(("w00", "w02", "w04")):
            two.post(EVENTS, json=event(worker, generation, worker))
        for _ in range(2):
            settled(one, 3)
        got = site.wait_for(18)
    ids = [each.headers["webhook-id"] for each in got]
    assert len(set(ids)) == len(ids) == len(site.received) == 18


@pytest.mark.processes
def test_a_service_that_is_killed_while_it_sends_is_followed_by_one_that_sends_again(tmp_path, monkeypatch):
    monkeypatch.setenv("KINTSUGI_WEBHOOK_TIMEOUT_SECONDS", "0.5")
    monkeypatch.setenv("KINTSUGI_PLANS_AHEAD", "false")
    database = tmp_path / "kintsugi.sqlite3"
    with receiver() as site:
        site.open.clear()
        with service(database, "--log-level", "error") as first:
            httpx2.post(f"{first.url}/v1/jobs", json=new_job(), timeout=240.0).raise_for_status()
            httpx2.post(
                f"{first.url}{HOOKS}", json={"id": "site", "url": site.url, "secret": SECRET}, timeout=240.0
            ).raise_for_status()
            httpx2.post(f"{first.url}{EVENTS}", json=event("a", 0, "w00"), timeout=240.0).raise_for_status()
            site.wait_for(1)
            first.kill()
        site.open.set()
        with service(database, "--log-level", "error"):
            before, after = site.wait_for(2)
    assert (before.body, before.headers["webhook-id"]) == (after.body, after.headers["webhook-id"])
    Verifier(SECRET).verify(after.body, after.headers)


def test_webhooks_are_shown_without_secrets_and_removed(client, job):
    with receiver() as site:
        shown = add(client, site.url)
        assert "secret" not in shown
        assert client.get(HOOKS).json()["webhooks"] == [shown]
        assert client.get(f"{HOOKS}/site").json() == shown
        assert client.delete(f"{HOOKS}/site").status_code == 204
        assert client.get(HOOKS).json()["webhooks"] == []
        for path in (f"{HOOKS}/site", f"{HOOKS}/site/deliveries", "/v1/jobs/none/webhooks"):
            assert_is_problem(client.get(path), 404)
        assert_is_problem(client.delete(f"{HOOKS}/site"), 404)


def test_receivers_of_one_job_that_never_answer_hold_up_no_other_job(settings):
    patient = settings.model_copy(update={"webhook_timeout_seconds": 60.0})
    with TestClient(create_app(patient)) as client, receiver() as slow, receiver() as quick:
        for name in ("llama", "other"):
            client.post("/v1/jobs", json=new_job(id=name))
        slow.open.clear()
        for number in range(20):
            add(client, slow.url, id=f"slow{number}")
        client.post("/v1/jobs/other/webhooks", json={"id": "quick", "url": quick.url, "secret": SECRET})
        client.post(EVENTS, json=event("e1", 0, "w01"))
        slow.wait_for(4)
        client.post("/v1/jobs/other/events", json=event("e1", 0, "w01"))
        quick.wait_for(1)
        assert len(slow.received) == 4


def test_the_same_request_again_gives_the_same_webhook(client, job):
    body = {"url": "https://example.com/hook", "secret": SECRET}
    key = {"Idempotency-Key": "k1"}
    first, second = (client.post(HOOKS, json=body, headers=key) for _ in range(2))
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json() == second.json()
    assert_is_problem(client.post(HOOKS, json={**body, "url": "https://example.com"}, headers=key), 409)
    assert client.post(HOOKS, json=body).json()["id"] != first.json()["id"]


@pytest.mark.both_databases
def test_two_writers_of_one_id_agree(client, job):
    body = {"id": "site", "url": "https://example.com/hook", "secret": SECRET}
    with ThreadPoolExecutor(4) as threads:
        statuses = sorted(response.status_code for response in threads.map(lambda _: client.post(HOOKS, json=body), range(4)))
    assert statuses == [200, 200, 200, 201]


@pytest.mark.both_databases
def test_a_change_needs_the_present_state_where_one_is_named(client, job):
    add(client, "https://example.com/hook")
    tag = client.get(f"{HOOKS}/site").headers["ETag"]
    body = {"url": "https://example.com/new", "secret": SECRET, "kinds": ["plan_decided"]}
    changed = client.put(f"{HOOKS}/site", json=body, headers={"If-Match": tag})
    assert (changed.status_code, changed.json()["url"]) == (200, body["url"])
    refused = client.put(f"{HOOKS}/site", json=body, headers={"If-Match": tag})
    assert assert_is_problem(refused, 412)["field"] == "If-Match"
    assert_is_problem(client.delete(f"{HOOKS}/site", headers={"If-Match": f"W/{tag}"}), 412)
    assert client.delete(f"{HOOKS}/site", headers={"If-Match": '"x", *'}).status_code == 204
    assert_is_problem(client.put(f"{HOOKS}/site", json=body), 404)


def test_a_job_has_only_so_many(client, job):
    for number in range(20):
        add(client, "https://example.com/hook", id=f"w{number}")
    body = {"url": "https://example.com/hook", "secret": SECRET}
    assert "remove one" in assert_is_problem(client.post(HOOKS, json=body), 409)["message"]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"url": "ftp://example.com"}, "url"),
        ({"url": "https://user:word@example.com"}, "url"),
        ({"url": "https://example.com/#part"}, "url"),
        ({"url": "https://example.com:99999"}, "url"),
        ({"url": "https:///path"}, "url"),
        ({"url": "https://ex ample.com"}, "url"),
        ({"url": "http://169.254.169.254/latest"}, "url"),
        ({"url": "http://10.1.2.3"}, "url"),
        ({"url": "http://[::ffff:10.0.0.1]"}, "url"),
        ({"url": "http://167772161"}, "url"),
        ({"url": "http://10.0.0.1./"}, "url"),
        ({"url": "http://256.0.0.1"}, "url"),
        ({"url": "http://1.2.3.4.5"}, "url"),
        ({"url": "http://%31%30.0.0.1"}, "url"),
        ({"url": "http://."}, "url"),
        ({"url": "http://-"}, "url"),
        ({"url": f"http://{'a' * 64}.example"}, "url"),
        ({"secret": "short"}, "secret"),
        ({"secret": "whsec_AAAA"}, "secret"),
        ({"kinds": []}, "kinds"),
        ({"kinds": ["plan_decided", "plan_decided"]}, "kinds[1]"),
        ({"kinds": ["plan_lost"]}, "kinds[0]"),
        ({"id": "a/b"}, "id"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_webhook_that_cannot_be_names_the_field(client, job, changes, field):
    body = {"url": "https://example.com", "secret": SECRET, **changes}
    error = assert_is_problem(client.post(HOOKS, json=body), 422)
    assert error["field"] == field
    assert "short" not in str(error)


def test_a_url_with_a_user_is_not_told_again_and_no_webhook_is_changed_to_one_that_is_refused(client, job):
    body = {"id": "site", "url": "https://user:word@example.com", "secret": SECRET}
    error = assert_is_problem(client.post(HOOKS, json=body), 422)
    assert "leave the user out" in error["message"]
    assert "word" not in str(error)
    add(client, "https://example.com")
    target = {"url": "http://0xa9fea9fe/latest", "secret": SECRET}
    assert assert_is_problem(client.put(f"{HOOKS}/site", json=target), 422)["value"] == "169.254.169.254"


@pytest.mark.both_databases
def test_deliveries_come_in_pages(client, job):
    with receiver() as site:
        add(client, site.url)
        for generation, worker in enumerate(("w00", "w02", "w04")):
            client.post(EVENTS, json=event(worker, generation, worker))
        everything = [delivery["id"] for delivery in settled(client, 3)]
    pages, cursor = [], None
    while cursor is not None or not pages:
        page = client.get(f"{HOOKS}/site/deliveries", params={"limit": 2, **({"cursor": cursor} if cursor else {})}).json()
        pages.append([delivery["id"] for delivery in page["deliveries"]])
        cursor = page["next_cursor"]
    assert [len(page) for page in pages] == [2, 1]
    assert [delivery for page in pages for delivery in page] == everything


def test_deliveries_are_kept_for_a_century_at_most(settings):
    longest = settings.model_copy(update={"webhook_keep_seconds": 3_153_600_000.0})
    with TestClient(create_app(longest)) as client, receiver() as site:
        client.post("/v1/jobs", json=new_job())
        add(client, site.url)
        client.post(EVENTS, json=event("w00", 0, "w00"))
        assert settled(client, 1)[0]["status"] == "delivered"
    with pytest.raises(ValidationError, match="webhook_keep_seconds"):
        Settings(webhook_keep_seconds=1e12)  # whose beginning lies before the first year
