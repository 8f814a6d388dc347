"""The gate under hostile requests: headers, secrets in URLs, sockets, crashes, other sites."""

import logging
import shutil

import pytest
import structlog
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from api.access.assembly import are_readable_on_the_way
from api.access.targets import Target, operations_of, target_of
from api.access.tokens import NewToken, redacted
from api.app import create_app
from api.settings import Settings
from kintsugi.core.errors import InvalidInputError, UnavailableError
from tests.api.access.world import OTHER, OWN, guarded, issued
from tests.api.requests import event, new_job


@pytest.fixture(scope="module")
def world(migrated_file, tmp_path_factory):
    """For all tests that leave its tokens as they are."""
    path = tmp_path_factory.mktemp("gate") / "kintsugi.sqlite3"
    shutil.copy(migrated_file, path)
    with guarded(f"sqlite:///{path}") as world:
        yield world


@pytest.fixture
def loud():
    """Warnings are logged."""
    before = structlog.get_config()["wrapper_class"]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    yield
    structlog.configure(wrapper_class=before)


@pytest.fixture
def own_world(database_url):
    with guarded(database_url) as world:
        yield world


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "bEaReR"])
@pytest.mark.parametrize("space", [" ", "   "])
def test_the_scheme_has_no_case(world, scheme, space):
    headers = {"Authorization": f"{scheme}{space}{world.secrets['reader']}"}
    assert world.client.get("/v1/jobs", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "value",
    [
        b"Bearer " + b"x" * 60_000,
        "Bearer kgi_ünïcode".encode(),
        b"Bearer \xff\xfe",
        b"Bearer\t",
        b"Bearer a b c",
        b"",
        b"," * 9_000,
    ],
)
def test_strange_headers_are_no_tokens(world, value):
    response = world.client.get("/v1/jobs", headers=[(b"Authorization", value)])
    assert response.status_code == 401
    assert response.json()["error"] == world.client.get("/v1/jobs").json()["error"]


def test_two_tokens_are_none(world):
    header = (b"Authorization", f"Bearer {world.secrets['reader']}".encode())
    assert world.client.get("/v1/jobs", headers=[header]).status_code == 200
    assert world.client.get("/v1/jobs", headers=[header, header]).status_code == 401
    assert world.client.get("/v1/jobs", headers=[(b"Authorization", b"Basic x"), header]).status_code == 401


@pytest.mark.parametrize("query", ["token={0}", "access_token={0}", "detail={0}", "TOKEN=x", "a=1&token=", "limit=1&x=y{0}"])
def test_a_token_in_a_url_is_refused_and_not_told_on(world, query):
    secret = world.secrets["admin"]
    response = world.ask("GET", f"/v1/jobs?{query.format(secret)}", "admin")
    assert response.status_code == 422
    assert response.json()["error"]["field"] == "url"
    assert secret not in response.text


def test_a_token_in_a_path_is_refused_and_not_told_on(world):
    secret = world.secrets["admin"]
    response = world.ask("GET", f"/v1/jobs/{secret}", "admin")
    assert response.status_code == 422
    assert secret[-20:] not in response.text
    assert redacted(f"GET /v1/jobs/{secret}/plan") == "GET /v1/jobs/kgi_.../plan"
    audited = world.ask("GET", "/v1/audit?limit=1000", "admin")
    assert secret[-20:] not in audited.text
    assert "kgi_..." in audited.text


def test_the_log_holds_no_token(world, capsys):
    secret = world.secrets["admin"]
    for path in ("/v1/jobs", f"/v1/jobs/{secret}", f"/v1/jobs?token={secret}", "/nowhere"):
        world.ask("GET", path, "admin")
    told = capsys.readouterr()
    assert secret not in told.out + told.err


def test_who_is_refused_for_a_scope_is_told_which_one_it_takes(world):
    refused = world.ask("POST", "/v1/jobs", "reader", json=new_job(id=OWN))
    assert refused.status_code == 403
    assert refused.headers["WWW-Authenticate"] == 'Bearer realm="kintsugi", error="insufficient_scope", scope="report"'
    single = world.ask("GET", "/v1/audit", "stranger")
    assert (single.status_code, single.json()["error"]["field"]) == (403, "Authorization")
    assert "WWW-Authenticate" not in single.headers, "its scope would do"


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "TRACE", "PROPFIND", "post", "X" * 300])
def test_other_methods_open_nothing(world, method):
    assert world.client.request(method, f"/v1/jobs/{OWN}").status_code == 401
    assert world.ask(method, f"/v1/jobs/{OWN}", "stranger").status_code == 404
    assert world.ask(method, f"/v1/jobs/{OWN}", "admin").status_code == 405


@pytest.mark.parametrize("name", ["X-HTTP-Method-Override", "X-Original-URL", "X-Rewrite-URL", "X-Forwarded-Prefix"])
def test_headers_do_not_change_what_is_asked_for(world, name):
    response = world.ask("GET", f"/v1/jobs/{OTHER}", "stranger", headers={name: f"/v1/jobs/{OWN}"})
    assert response.json()["summary"]["id"] == OTHER


@pytest.mark.parametrize("host", ["[", "evil.example", "", "a" * 5_000, "x@y:z"])
def test_a_strange_host_breaks_nothing(world, host):
    response = world.client.get("/v1/jobs/nothing", headers={"Host": host, **world.bearer("admin")})
    assert response.status_code == 404
    assert response.json()["instance"] == "/v1/jobs/nothing"


def test_a_web_socket_is_closed(world):
    with pytest.raises(WebSocketDisconnect) as closed, world.client.websocket_connect("/v1/stream"):
        pass
    assert closed.value.code == 1008


def test_a_crash_is_a_problem_with_its_request_id(database_url):
    app = create_app(Settings(database_url=database_url))

    @app.get("/crash")
    def crash() -> None:
        raise RuntimeError("a secret of the inside")

    with TestClient(app, raise_server_exceptions=False) as client:
        response = client.get("/crash")
    assert response.status_code == 500
    assert response.headers["Content-Type"] == "application/problem+json"
    assert response.headers["X-Request-Id"]
    assert "secret" not in response.text


@pytest.mark.parametrize(
    ("changes", "status"), [({}, 403), ({"require_tokens": "never"}, 403), ({"require_tokens": "never", "host": "0.0.0.0"}, 200)]
)
def test_another_site_cannot_use_a_browser_of_this_machine(database_url, changes, status):
    app = create_app(Settings(database_url=database_url, plans_ahead=False, **changes))
    with TestClient(app, client=("127.0.0.1", 1)) as client:
        response = client.get("/v1/jobs", headers={"Host": "evil.example"})
        assert response.status_code == status
        assert client.get("/v1/jobs", headers={"Host": "localhost"}).status_code == 200
    if status == 403:
        assert response.json()["error"]["field"] == "Host"
        assert "WWW-Authenticate" not in response.headers


@pytest.mark.parametrize("changes", [{}, {"require_tokens": "never", "host": "0.0.0.0"}])
def test_where_no_token_is_needed_pages_of_other_sites_change_nothing(database_url, changes):
    app = create_app(Settings(database_url=database_url, plans_ahead=False, **changes))
    with TestClient(app, client=("127.0.0.1", 1), base_url="http://localhost") as client:
        assert client.post("/v1/jobs", json=new_job(id=OWN)).status_code == 201
        again = f"/v1/jobs/{OWN}/webhooks/a/deliveries/b/retry"  # which browsers send without asking, as it has no body
        injecting = {"Origin": 'http://evil.example", Basic realm="your password'}
        for headers in ({"Origin": "http://evil.example"}, injecting, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
            refused = client.post(again, headers=headers)
            assert (refused.status_code, refused.json()["error"]["field"]) == (403, "Origin")
            assert "WWW-Authenticate" not in refused.headers
        for headers in ({}, {"Origin": "http://localhost"}, {"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}):
            assert client.post(again, headers=headers).status_code == 404
        assert client.get("/v1/jobs", headers={"Origin": "http://evil.example"}).status_code == 200


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"host": "0.0.0.0"}, True),
        ({"host": "::"}, True),
        ({}, False),
        ({"host": "0.0.0.0", "tls_certificate": "some.pem"}, False),
        ({"host": "0.0.0.0", "trusted_proxies": ["10.0.0.5/32"]}, False),
    ],
)
def test_when_tokens_can_be_read_on_their_way(changes, expected):
    assert are_readable_on_the_way(Settings(**changes)) is expected


def test_tokens_that_can_be_read_on_their_way_are_warned_of(database_url, loud):
    issued(database_url, NewToken(name="any"))
    told = []
    for require_tokens in ("never", "auto"):
        app = create_app(Settings(database_url=database_url, host="0.0.0.0", require_tokens=require_tokens))
        with structlog.testing.capture_logs() as lines, TestClient(app):
            pass
        told.append([line for line in lines if line["event"] == "tokens travel unencrypted"])
    assert [len(lines) for lines in told] == [0, 1]
    assert "--tls-certificate" in told[1][0]["way_out"]


def test_keys_of_one_token_mean_nothing_to_another(world):
    body, key = new_job(id=None), {"Idempotency-Key": "k"}
    first = world.ask("POST", "/v1/jobs", "admin", json=body, headers=key)
    again = world.ask("POST", "/v1/jobs", "admin", json=body, headers=key)
    other = world.ask("POST", "/v1/jobs", "reporter", json=body, headers=key)
    changed = world.ask("POST", "/v1/jobs", "admin", json={**body, "workers": 4}, headers=key)
    assert first.json()["summary"]["id"] == again.json()["summary"]["id"] != other.json()["summary"]["id"]
    assert changed.status_code == 409
    assert changed.json()["error"]["value"] == "k"


def test_a_webhooks_key_means_nothing_to_another_token(own_world):
    body, key = {"url": "https://example.com/hook", "secret": "whsec_" + "MDEy" * 8}, {"Idempotency-Key": "k"}
    path = f"/v1/jobs/{OWN}/webhooks"
    first = own_world.ask("POST", path, "admin", json=body, headers=key)
    theirs = own_world.ask("POST", path, "own admin", json={**body, "url": "https://example.org/hook"}, headers=key)
    assert (first.status_code, theirs.status_code) == (201, 201), theirs.text
    assert own_world.ask("POST", path, "admin", json=body, headers=key).json() == first.json()


def test_a_revoked_token_is_refused_at_once(own_world):
    token = own_world.secrets["reporter"].split("_")[1]
    assert own_world.ask("GET", "/v1/jobs", "reporter").status_code == 200
    assert own_world.ask("DELETE", f"/v1/tokens/{token}", "admin").json()["revoked_at"]
    assert own_world.ask("GET", "/v1/jobs", "reporter").status_code == 401


@pytest.mark.parametrize(
    ("changes", "has_token", "expected"),
    [
        ({}, False, False),
        ({}, True, True),
        ({"require_tokens": "never"}, True, False),
        ({"require_tokens": "never", "host": "0.0.0.0"}, False, False),
        ({"require_tokens": "always"}, True, True),
        ({"host": "0.0.0.0"}, True, True),
        ({"require_tokens": "always"}, False, None),
        ({"host": "0.0.0.0"}, False, None),
        ({"host": "kintsugi.example"}, False, None),
    ],
)
def test_when_tokens_are_needed(database_url, changes, has_token, expected):
    if has_token:
        issued(database_url, NewToken(name="any"))
    app = create_app(Settings(database_url=database_url, **changes))
    if expected is None:
        with pytest.raises(InvalidInputError, match="kintsugi token create"), TestClient(app):
            pass
        return
    with TestClient(app) as client:
        assert client.get("/v1/jobs").status_code == (401 if expected else 200)
        assert client.get("/healthz").status_code == 200


@pytest.mark.parametrize(("require_tokens", "status"), [("auto", 401), ("never", 200)])
def test_the_first_token_closes_the_service_that_issues_it_at_once(database_url, require_tokens, status):
    with TestClient(create_app(Settings(database_url=database_url, require_tokens=require_tokens))) as client:
        assert client.get("/v1/jobs").status_code == 200
        secret = client.post("/v1/tokens", json={"name": "admin", "scope": "administer"}).json()["secret"]
        assert client.get("/v1/jobs").status_code == status
        assert client.post("/v1/tokens", json={"name": "other"}).status_code == (401 if status == 401 else 201)
        assert client.get("/v1/jobs", headers={"Authorization": f"Bearer {secret}"}).status_code == 200


@pytest.mark.parametrize(("require_tokens", "status"), [("auto", 401), ("never", 200)])
def test_the_first_token_of_another_process_closes_a_running_service(database_url, require_tokens, status, monkeypatch):
    monkeypatch.setattr("api.access.assembly.CACHED_SECONDS", 0.0)
    with TestClient(create_app(Settings(database_url=database_url, require_tokens=require_tokens))) as client:
        assert client.get("/v1/jobs").status_code == 200
        issued(database_url, NewToken(name="any"))
        assert client.get("/v1/jobs").status_code == status
        assert client.get("/healthz").status_code == 200


def test_a_database_that_is_away_neither_opens_nor_closes(database_url, monkeypatch):
    def away():
        raise UnavailableError("the database is away")

    with TestClient(create_app(Settings(database_url=database_url))) as client:
        access = client.app.state.desk.access
        monkeypatch.setattr("api.access.assembly.CACHED_SECONDS", 0.0)
        monkeypatch.setattr(access.vault, "has_any", away)
        assert client.get("/v1/jobs").status_code == 200


def test_the_gate_sees_the_route_that_the_application_takes(world):
    operations = operations_of(world.client.app.routes)

    def target(method, path):
        return target_of(operations, {"type": "http", "method": method, "path": path})

    assert target("POST", "/v1/jobs/a/events") == Target(path="/v1/jobs/{job}/events", job="a")
    assert target("PUT", "/v1/jobs/a/events").job == "a"
    assert target("GET", "/v1/jobs/a/b/c/d") == Target(path=None, job=None)
    assert target("GET", "/v1/jobs/a%2Fb") == Target(path="/v1/jobs/{job}", job="a%2Fb")
    assert target("GET", "/v1/jobs/a\n").job in (None, "a\n")


def test_writes_and_refusals_are_in_the_audit_log(own_world):
    own_world.ask("POST", f"/v1/jobs/{OWN}/events", "own reporter", json=event("a", 0, "w05"))
    own_world.ask("GET", f"/v1/jobs/{OWN}", "own reader")
    own_world.ask("GET", f"/v1/jobs/{OWN}", "stranger")
    refused = own_world.client.get("/v1/jobs", headers={"X-Forwarded-For": "1.2.3.4"})
    entries = own_world.ask("GET", "/v1/audit", "admin").json()["entries"]
    records = [entry["record"] for entry in entries]
    assert [(record["name"], record["method"], record["route"], record["job"], record["status"]) for record in records] == [
        ("admin", "POST", "/v1/jobs", None, 201),
        ("admin", "POST", "/v1/jobs", None, 201),
        ("own reporter", "POST", "/v1/jobs/{job}/events", OWN, 200),
        ("stranger", "GET", "/v1/jobs/{job}", OWN, 404),
        (None, "GET", "/v1/jobs", None, 401),
    ]
    assert records[-1]["request"] == refused.headers["X-Request-Id"]
    assert records[-1]["address"] == "testclient"
    first = own_world.ask("GET", "/v1/audit?limit=2", "admin").json()
    rest = own_world.ask("GET", f"/v1/audit?cursor={first['next_cursor']}", "admin").json()
    assert first["entries"] + rest["entries"] == entries
    about = own_world.ask("GET", f"/v1/audit?job={OWN}", "admin").json()["entries"]
    assert [entry["record"]["status"] for entry in about] == [200, 404]
