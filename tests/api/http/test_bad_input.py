"""Whatever comes in, the answer is a problem document that names the field, and nothing is stored."""

import json

import anyio
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from api.http import middleware
from api.http.middleware import LINGERING_BYTES, BodyLimit
from api.texts import LONGEST_TEXT
from kintsugi.core import codec
from tests.api.requests import EVENTS, JOB, REPORTS, event, new_job
from tests.builders import uniform_profile

JSON = {"Content-Type": "application/json"}


def assert_is_problem(response, status):
    assert response.status_code == status, response.text
    assert response.headers["Content-Type"] == "application/problem+json"
    problem = response.json()
    assert problem["status"] == status
    assert problem["detail"]
    assert {"code", "field", "value", "message"} <= set(problem["error"])
    return problem["error"]


def profile(**changes):
    return {**codec.encode(uniform_profile(4)), **changes}


def layers(**changes):
    first, *others = profile()["layers"]
    return [{**first, **changes}, *others]


@pytest.mark.parametrize(
    "body", [b"", b"{", b"{'a': 1}", b"\xff\xfe", b"[" * 100_000, b"1" * 5_000, b'{"a": 1} x', b'{"a": 1, "a": 2}']
)
def test_a_body_that_is_not_json(client, job, body):
    response = client.post(EVENTS, content=body, headers=JSON)
    assert assert_is_problem(response, 400)["code"] == "not_json"


@pytest.mark.parametrize("body", ["null", "1", '"x"', "[]", "{}", "true"])
def test_json_that_is_no_event(client, job, body):
    assert_is_problem(client.post(EVENTS, content=body, headers=JSON), 422)


@pytest.mark.parametrize("content_type", [None, "text/plain", "application/x-www-form-urlencoded", "image/png"])
def test_another_media_type(client, job, content_type):
    headers = {} if content_type is None else {"Content-Type": content_type}
    response = client.post(EVENTS, content=json.dumps(event("a", 0, "w00")).encode(), headers=headers)
    assert assert_is_problem(response, 415)["code"] == "unsupported_media_type"


@pytest.mark.parametrize("parts", [[b" " * 1_000_001], [b" " * 100_000] * 11])
def test_a_body_above_the_limit(client, job, parts):
    content = parts[0] if len(parts) == 1 else iter(parts)
    error = assert_is_problem(client.post(EVENTS, content=content, headers=JSON), 413)
    assert (error["code"], error["field"]) == ("body_too_large", "body")


@pytest.mark.anyio
@pytest.mark.parametrize("declared", [False, True])
async def test_a_huge_body_is_not_taken_in(app, declared):
    taken = 0
    sent = []

    async def receive():
        nonlocal taken
        taken += 1
        return {"type": "http.request", "body": b" " * 100_000, "more_body": True}

    async def send(message):
        sent.append(message)

    headers = [(b"content-type", b"application/json")] + [(b"content-length", b"100000000")] * declared
    scope = {"type": "http", "method": "POST", "path": EVENTS, "raw_path": EVENTS.encode(), "query_string": b""}
    scope |= {
        "headers": headers,
        "scheme": "http",
        "server": ("test", 80),
        "client": ("test", 1),
        "http_version": "1.1",
        "state": {},
    }
    async with app.router.lifespan_context(app):
        await app({**scope, "asgi": {"version": "3.0"}, "root_path": ""}, receive, send)
    assert sent[0]["status"] == 413
    assert taken <= LINGERING_BYTES // 100_000 + 12


@pytest.mark.anyio
async def test_who_asks_before_it_sends_too_much_is_answered_at_once():
    async def receive():
        raise AssertionError("nothing comes before the answer")

    sent = []

    async def send(message):
        sent.append(message)

    headers = [(b"content-length", b"100000000"), (b"expect", b"100-continue")]
    await BodyLimit(receive, 1_000)({"type": "http", "path": EVENTS, "headers": headers}, receive, send)
    assert sent[0]["status"] == 413


@pytest.mark.anyio
async def test_a_client_that_sends_too_much_slowly_is_not_listened_to_for_long(monkeypatch):
    monkeypatch.setattr(middleware, "LINGERING_SECONDS", 0.01)
    sent = []

    async def receive():
        await anyio.sleep(0.001)
        return {"type": "http.request", "body": b" ", "more_body": True}

    async def send(message):
        sent.append(message)

    headers = [(b"content-length", b"100000000")]
    await BodyLimit(receive, 1_000)({"type": "http", "path": EVENTS, "headers": headers}, receive, send)
    assert sent[0]["status"] == 413


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"id": ""}, "id"),
        ({"id": "a/b"}, "id"),
        ({"id": "x" * 101}, "id"),
        ({"colour": "red"}, "colour"),
        ({"workers": True}, "workers"),
        ({"workers": 2.5}, "workers"),
        ({"workers": None}, "workers"),
        ({"settings": {"num_microbatches": 0}}, "settings.num_microbatches"),
        ({"settings": {"num_microbatches": 100_000_000_000}}, "settings.num_microbatches"),
        ({"settings": {"num_microbatches": 65_537}}, "settings.num_microbatches"),
        ({"settings": {"num_microbatches": 8, "policy": "prayer"}}, "settings.policy"),
        ({"settings": {"num_microbatches": 8, "mtbf_seconds": 1e-320}}, "settings.mtbf_seconds"),
        ({"settings": {"num_microbatches": 8, "heartbeat_timeout_seconds": 1e-9}}, "settings.heartbeat_timeout_seconds"),
        ({"settings": {"num_microbatches": 8, "allows_follow_up": True}}, "settings.allows_follow_up"),
        ({"settings": {"num_microbatches": 8, "ranges": {"min_dp": 3, "max_dp": 2}}}, "settings.ranges.max_dp"),
        ({"profile": profile(layers=layers(forward_seconds=-1))}, "profile.layers[0].forward_seconds"),
        ({"profile": profile(layers=layers(forward_seconds=10_000))}, "profile.layers[0].forward_seconds"),
        ({"profile": profile(layers=layers(forward_seconds=True))}, "profile.layers[0].forward_seconds"),
        ({"profile": profile(layers=layers(parameter_bytes="1"))}, "profile.layers[0].parameter_bytes"),
        ({"profile": profile(layers=layers(tied_to="nobody"))}, "profile.layers[0].tied_to"),
        ({"profile": profile(layers=[])}, "profile.layers"),
        ({"profile": profile(schema_version=2)}, "profile.schema_version"),
        ({"profile": profile(device={"name": "A100", "memory_bytes": 80})}, "profile.device.memory_bytes"),
    ],
)
def test_a_job_that_cannot_be_names_the_field(client, changes, field):
    error = assert_is_problem(client.post("/v1/jobs", json=new_job(**changes)), 422)
    assert error["field"] == field
    assert client.get("/v1/jobs").json()["jobs"] == []


@pytest.mark.parametrize(("name", "text"), [("speed_ratio", "NaN"), ("speed_ratio", "1e999"), ("deadline_seconds", "-Infinity")])
def test_numbers_that_are_none(client, job, name, text):
    body = json.dumps(event("a", 0, "w00", "straggler", **{"speed_ratio": 1.0, name: "X"})).replace('"X"', text)
    assert assert_is_problem(client.post(EVENTS, content=body, headers=JSON), 422)["field"] == name


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (event("a", False, "w00"), "generation"),
        (event("a", 0, "w00", "worker_vanished"), "kind"),
        (event("a", 0), "worker"),
        (event("a", 0, kind="host_failed"), "host"),
        (event("a", 0, "w00", "straggler"), "speed_ratio"),
        (event("a", 0, "w00", colour="red"), "colour"),
        (event("", 0, "w00"), "id"),
        (event("\ud800", 0, "w00"), "id"),
        ({"events": []}, "events"),
        ({"events": [event("a", 0, "w00"), event("a", 0, "w01")]}, "events[1]"),
        ({"events": [event("a", 0, "w00"), event("b", 0.5, "w01")]}, "events[1].generation"),
    ],
)
def test_an_event_that_cannot_be_names_the_field(client, job, body, field):
    error = assert_is_problem(client.post(EVENTS, content=json.dumps(body), headers=JSON), 422)
    assert error["field"] == field
    assert client.get(EVENTS).json()["events"] == []


def test_texts_that_utf8_cannot_hold_come_back_escaped(client, job):
    body = json.dumps(event("a", 0, "w00", detail="\ud800"))
    assert client.post(EVENTS, content=body, headers=JSON).status_code == 200
    assert client.get(EVENTS).json()["events"][0]["event"]["detail"] == "\ud800"


def test_what_is_long_comes_back_cut_and_says_so(client, job):
    long = "x" * 900_000
    unknown = assert_is_problem(client.post("/v1/jobs", json=new_job(**{long: 1})), 422)
    missing = assert_is_problem(client.get(f"/v1/{long[:40_000]}"), 404)
    for text, length in ((unknown["field"], "900,000"), (missing["value"], "40,004")):
        assert text.endswith(f"... ({length} characters)")
        assert len(text) < LONGEST_TEXT + 100
    assert len(missing["message"]) < LONGEST_TEXT + 100


def test_a_token_that_outlives_the_calendar(client):
    asked = {"name": "ci", "expires_in_seconds": 7965022847683083.0}
    assert assert_is_problem(client.post("/v1/tokens", json=asked), 422)["field"] == "expires_in_seconds"


@pytest.mark.parametrize("job", ["", "llama\x1b[2J", "x" * 201])
def test_a_token_for_a_job_of_a_name_that_none_can_have(client, job):
    asked = {"name": "ci", "job": job}
    assert assert_is_problem(client.post("/v1/tokens", json=asked), 422)["field"] == "job"


def test_a_method_that_is_not_there(client):
    response = client.put(JOB, json={})
    assert_is_problem(response, 405)
    assert "GET" in response.headers["Allow"]
    assert_is_problem(client.get("/v2/jobs"), 404)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ("kind", "id", "generation", "worker", "status", "reason", "measured", "profile", "workers", "settings", "job")
somewhat = st.dictionaries(st.sampled_from(FIELDS), anything)


@pytest.mark.both_databases
@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(path=st.sampled_from([EVENTS, REPORTS, "/v1/jobs", "/v1/estimates", "/v1/whatif"]), body=anything | somewhat)
def test_nothing_breaks_the_service(client, job, path, body):
    response = client.post(path, content=json.dumps(body), headers=JSON)
    assert 400 <= response.status_code < 500
    assert_is_problem(response, response.status_code)
