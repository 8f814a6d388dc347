"""What the service holds is bounded, and every refusal names the setting."""

from contextlib import ExitStack

import pytest
from starlette.testclient import TestClient

from api.access.callers import Caller, calling
from api.access.limits import TRACKED_CALLERS, Buckets, Places
from api.access.tokens import NewToken, Scope, Token
from api.app import create_app
from api.settings import Settings
from kintsugi.core.errors import TooManyRequestsError
from tests.api.access.world import guarded, issued
from tests.api.requests import EVENTS, JOB, REPORTS, event, new_job


def limited(database_url, **limits) -> TestClient:
    return TestClient(create_app(Settings(database_url=database_url, plans_ahead=False, **limits)))


def assert_full(refused, setting):
    assert refused.status_code == 409
    assert refused.json()["error"]["code"] == "limit_reached"
    assert refused.json()["error"]["field"] == setting


@pytest.mark.parametrize(
    ("limits", "setting"), [({"max_jobs": 1}, "KINTSUGI_MAX_JOBS"), ({"max_workers_per_job": 7}, "KINTSUGI_MAX_WORKERS_PER_JOB")]
)
def test_a_job_too_many_is_refused(database_url, limits, setting):
    with limited(database_url, **limits) as client:
        assert client.post("/v1/jobs", json=new_job()).status_code == 201
        assert_full(client.post("/v1/jobs", json=new_job(id="second", workers=8)), setting)
        assert client.post("/v1/jobs", json=new_job()).status_code == 200


def test_the_last_job_that_there_is_room_for_is_told_again_to_whom_the_answer_was_lost(database_url):
    with limited(database_url, max_jobs=1) as client:
        first, again = (client.post("/v1/jobs", json=new_job(id=None), headers={"Idempotency-Key": "mine"}) for _ in range(2))
        assert (first.status_code, again.status_code) == (201, 200)
        assert first.json()["summary"]["id"] == again.json()["summary"]["id"]
        assert_full(client.post("/v1/jobs", json=new_job(id=None), headers={"Idempotency-Key": "another"}), "KINTSUGI_MAX_JOBS")


def test_a_worker_too_many_does_not_join(database_url):
    with limited(database_url, max_workers_per_job=7) as client:
        assert client.post("/v1/jobs", json=new_job()).status_code == 201
        several = [event(name, 0, name, "worker_joined") for name in ("new1", "new2")]
        assert_full(client.post(EVENTS, json={"events": several}), "KINTSUGI_MAX_WORKERS_PER_JOB")
        assert client.get(EVENTS).json()["events"] == []
        assert client.post(EVENTS, json=several[0]).status_code == 200
        assert_full(client.post(EVENTS, json={**several[1], "generation": 1}), "KINTSUGI_MAX_WORKERS_PER_JOB")
        assert client.post(EVENTS, json=several[0]).json()["generation"] == 1
        assert client.post(EVENTS, json=event("lost", 1, "w05")).status_code == 200
        assert client.post(EVENTS, json=event("back", 2, "w05", "worker_joined")).status_code == 200


@pytest.mark.parametrize(
    ("path", "parameters"),
    [
        (f"{JOB}/plan", {"after_generation": 0, "wait_seconds": 30}),
        (EVENTS, {"after": 0, "wait_seconds": 30}),
        (REPORTS, {"after": 0, "wait_seconds": 30}),
        (f"{JOB}/stream", {}),
        ("/v1/stream", {}),
    ],
)
def test_who_waits_takes_a_place_and_gives_it_back(database_url, path, parameters):
    with limited(database_url, max_waiting_clients=1) as client:
        client.post("/v1/jobs", json=new_job())
        with client.app.state.desk.access.places.one():
            refused = client.get(path, params=parameters)
            assert refused.status_code == 429
            assert refused.json()["error"]["field"] == "KINTSUGI_MAX_WAITING_CLIENTS"
            assert refused.headers["Retry-After"] == "1"
            assert client.get(EVENTS, params={"after": 0}).status_code == 200
        client.app.state.tail.close()
        client.app.state.watch.close()
        for _ in range(2):
            assert client.get(path, params=parameters).status_code in (200, 204)


def test_too_many_requests_are_told_when_to_come_again(database_url):
    with guarded(database_url, max_requests_per_second=0.001, max_request_burst=5) as world:
        answers = [world.ask("GET", "/v1/jobs", "reader") for _ in range(6)]
        assert [answer.status_code for answer in answers] == [200] * 5 + [429]
        assert answers[-1].json()["error"]["code"] == "too_many_requests"
        assert 900 <= int(answers[-1].headers["Retry-After"]) <= 1_000
        assert world.ask("GET", "/v1/jobs", "own reader").status_code == 200


@pytest.mark.parametrize("require_tokens", ["always", "never"])
def test_probes_are_answered_however_much_is_asked(database_url, require_tokens):
    issued(database_url, NewToken(name="any"))
    settings = Settings(
        database_url=database_url, require_tokens=require_tokens, max_requests_per_second=0.001, max_request_burst=1
    )
    with TestClient(create_app(settings)) as client:
        for path in ("/healthz", "/readyz"):
            assert [client.get(path).status_code for _ in range(3)] == [200] * 3
        assert [client.get("/login").status_code for _ in range(2)] == [200, 429]


def test_guessing_is_slowed_down_without_locking_out_who_has_a_token(database_url):
    with guarded(database_url, max_failed_sign_ins_per_minute=3) as world:
        statuses = [world.client.get("/v1/jobs").status_code for _ in range(5)]
        assert statuses == [401, 401, 401, 429, 429]
        assert world.ask("GET", "/v1/jobs", "reader").status_code == 200


def test_buckets_fill_again_and_forget_the_oldest():
    now = [0.0]
    buckets = Buckets(rate=2.0, burst=2.0, setting="KINTSUGI_X", clock=lambda: now[0])
    assert [buckets.passes("a") for _ in range(3)] == [True, True, False]
    with pytest.raises(TooManyRequestsError) as refused:
        buckets.take("a")
    assert refused.value.retry_seconds == 1
    now[0] = 0.5
    assert [buckets.passes("a") for _ in range(2)] == [True, False]
    for number in range(TRACKED_CALLERS):
        buckets.passes(str(number))
    assert buckets.passes("a")


def test_places_are_given_back():
    places = Places(1)
    with places.one(), pytest.raises(TooManyRequestsError), places.one():
        pass
    with places.one():
        pass


def test_one_token_leaves_places_for_others():
    places, wild, other = Places(4), calling_with("wild"), calling_with("other")
    with ExitStack() as taken:
        with calling(wild):
            for _ in range(3):
                taken.enter_context(places.one())
            with pytest.raises(TooManyRequestsError, match="3 clients with this token wait already"), places.one():
                pass
        with calling(other), places.one(), pytest.raises(TooManyRequestsError, match="4 clients wait already"), places.one():
            pass
    with calling(wild), places.one():
        pass


def test_without_tokens_everybody_may_take_all():
    places = Places(2)
    with places.one(), places.one(), pytest.raises(TooManyRequestsError, match="2 clients wait already"), places.one():
        pass


def calling_with(id: str) -> Caller:  # noqa: A002
    token = Token(id=id, name=id, scope=Scope.READ, job=None, created_at="2026-01-01T00:00:00Z", expires_at=None, revoked_at=None)
    return Caller(token=token)
