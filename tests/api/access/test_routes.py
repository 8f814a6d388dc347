"""Every route of the application, those that are added later too, under every kind of token that is not enough."""

import shutil

import pytest

from api.access.needs import RULES, need_of
from api.access.targets import operations_of
from tests.api.access.world import ABSENT, OTHER, OWN, guarded
from tests.api.requests import event

OPEN_PATHS = {"/healthz", "/readyz", "/login", "/logout", "/dashboard/static/{name}"}
STUDIES = {"/v1/estimates", "/v1/whatif", "/v1/simulations"}
MEETINGS = {"/v1/rendezvous/{run}/{key}"}
OVERLAYS = {"/v1/jobs/{job}/overlay/events", "/v1/jobs/{job}/overlay/heartbeats", "/dashboard/jobs/{job}/overlay/leave"}
LEASES = {"/v1/jobs/{job}/generations/{generation}/lease"}
LOGS = {f"/v1/jobs/{{job}}/{kind}" for kind in ("events", "reports", "heartbeats", "ending")}
REPORTS = {"/v1/jobs"} | LOGS | OVERLAYS | MEETINGS | LEASES
SAMPLES = {"generation": "0", "step": "0", "number": "0"}
CHANGING = {"x-request-id", "content-length"}


@pytest.fixture(scope="module")
def world(migrated_file, tmp_path_factory):
    path = tmp_path_factory.mktemp("access") / "kintsugi.sqlite3"
    shutil.copy(migrated_file, path)
    with guarded(f"sqlite:///{path}") as world:
        yield world


@pytest.fixture(scope="module")
def operations(world):
    """Method and template of everything that is not open to all."""
    found = [
        (method, operation.path)
        for operation in operations_of(world.client.app.routes)
        for method in sorted(operation.methods or {"GET"})
        if operation.path not in OPEN_PATHS
    ]
    assert len(found) > 20
    return found


def filled(template: str, job: str) -> str:
    parts = []
    for part in template.split("/"):
        name = part.strip("{}").removesuffix(":path")
        parts.append(part if part == name else job if name == "job" else SAMPLES.get(name, "some"))
    return "/".join(parts)


def shape(response, job: str):
    """All of an answer but what names the request itself."""
    headers = {name: value for name, value in response.headers.items() if name not in CHANGING}
    return response.status_code, headers, response.text.replace(job, "JOB")


def assert_problem(response, status: int, code: str):
    assert response.status_code == status, response.text
    assert response.headers["Content-Type"] == "application/problem+json"
    assert response.headers["Cache-Control"] == "no-store"
    assert response.headers["X-Request-Id"]
    problem = response.json() if response.content else {"error": {"code": code}}
    assert problem["error"]["code"] == code


def test_without_a_usable_token_every_route_answers_the_same(world, operations):
    headers = [
        {},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer kgi_0123456789abcdef_" + "x" * 43},
        {"Authorization": "Bearer " + world.secrets["admin"][:-1]},
        {"Authorization": "Basic " + world.secrets["admin"]},
        {"Authorization": world.secrets["admin"]},
        {"Cookie": "kintsugi=nonsense"},
        world.bearer("expired"),
        world.bearer("revoked"),
    ]
    for method, template in operations:
        path = filled(template, OWN)
        answers = [world.client.request(method, path, headers=given, follow_redirects=False) for given in headers]
        assert len({str(shape(answer, OWN)) for answer in answers}) == 1, f"{method} {template}"
        if answers[0].status_code == 303:
            assert answers[0].headers["Location"].startswith("/login?next=%2F"), template
            assert template == "/" or template.startswith("/dashboard")
            continue
        if method != "HEAD":
            assert_problem(answers[0], 401, "unauthenticated")
        assert answers[0].headers["WWW-Authenticate"] == 'Bearer realm="kintsugi"'


def test_a_job_of_others_is_answered_as_one_that_is_not_there(world, operations):
    about_jobs = [(method, template) for method, template in operations if "{job}" in template]
    assert len(about_jobs) > 10
    for method, template in about_jobs:
        for headers in ({}, {"If-None-Match": "*"}, {"Content-Type": "application/json"}):
            there, absent = (
                world.ask(method, filled(template, job), "stranger", headers=headers, content=b"{}") for job in (OWN, ABSENT)
            )
            assert_problem(there, 404, "not_found")
            assert shape(there, OWN) == shape(absent, ABSENT), f"{method} {template}"


def test_what_is_not_about_one_job_says_nothing_of_others(world, operations):
    bodies = {"/v1/whatif": {"job": OWN, "fail": ["w00"]}}
    for method, template in operations:
        if "{job}" in template:
            continue
        path = filled(template, OWN)
        response = world.ask(method, path, "stranger", json=bodies.get(template, {"id": "some"}))
        if template == "/v1/whatif":
            assert_problem_of_absent(world, response)
            continue
        assert OWN not in response.text, f"{method} {template}"
        assert response.status_code in (200, 307, 400, 403, 404, 415, 422), f"{method} {template}: {response.status_code}"


def assert_problem_of_absent(world, response):
    absent = world.ask("POST", "/v1/whatif", "stranger", json={"job": ABSENT, "fail": ["w00"]})
    assert response.status_code == 404
    assert shape(response, OWN) == shape(absent, ABSENT)


def test_who_may_look_may_not_write(world, operations):
    for method, template in operations:
        if method in ("GET", "HEAD") or template in STUDIES:
            continue
        for name in ("reader", "own reader"):
            assert_problem(world.ask(method, filled(template, OWN), name), 403, "forbidden")


def test_who_may_report_may_not_administer(world, operations):
    for method, template in operations:
        if method not in ("GET", "HEAD") and template not in STUDIES | REPORTS:
            assert_problem(world.ask(method, filled(template, OWN), "own reporter"), 403, "forbidden")
            assert_problem(world.ask(method, filled(template, OWN), "reporter"), 403, "forbidden")


@pytest.mark.parametrize("path", ["/v1/tokens", "/v1/audit"])
def test_tokens_and_the_audit_log_are_for_administrators_of_everything(world, path):
    for name in ("reader", "reporter", "own admin", "own reader", "stranger"):
        assert_problem(world.ask("GET", path, name), 403, "forbidden")
    assert world.ask("GET", path, "admin").status_code == 200


def test_a_token_of_one_job_lists_it_alone_and_sees_no_metrics(world):
    assert [job["id"] for job in world.ask("GET", "/v1/jobs", "stranger").json()["jobs"]] == [OTHER]
    assert [job["id"] for job in world.ask("GET", "/v1/jobs", "reader").json()["jobs"]] == [OTHER, OWN]
    assert world.ask("GET", "/metrics", "stranger").status_code == 403
    assert world.ask("GET", "/metrics", "reader").status_code == 200
    assert_problem(world.ask("POST", "/v1/jobs", "own reporter", json={"id": "mine"}), 403, "forbidden")


def test_every_token_may_do_what_it_is_for(world):
    plan = world.ask("GET", f"/v1/jobs/{OWN}/plan", "own reader")
    assert plan.status_code == 200
    assert plan.headers["Cache-Control"] == "private, no-cache"
    lost = event("a", plan.json()["generation"], "w05")
    assert world.ask("POST", f"/v1/jobs/{OWN}/events", "own reporter", json=lost).status_code == 200
    assert world.ask("POST", "/v1/whatif", "own reader", json={"job": OWN, "fail": ["w00"]}).status_code == 200
    assert world.ask("GET", f"/v1/jobs/{OWN}/webhooks", "own admin").status_code == 200


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://8.8.8.8:8443/services/secret?key=secret", "https://8.8.8.8:8443/..."),
        ("https://8.8.8.8?key=secret", "https://8.8.8.8/..."),
        ("https://8.8.8.8/", "https://8.8.8.8/"),
    ],
)
def test_who_may_not_administer_is_shown_the_servers_of_webhooks_alone(world, url, shown):
    hooks, secret = f"/v1/jobs/{OWN}/webhooks", f"whsec_{'QUJD' * 10}"
    made = world.ask("POST", hooks, "own admin", json={"id": "site", "url": url, "secret": secret})
    assert made.json()["url"] == url
    for name in ("admin", "own admin", "reporter", "reader", "own reader"):
        expected = url if "admin" in name else shown
        assert world.ask("GET", f"{hooks}/site", name).json()["url"] == expected
        assert [hook["url"] for hook in world.ask("GET", hooks, name).json()["webhooks"]] == [expected]
    changed = world.ask("GET", f"{hooks}/site", "own admin").headers["ETag"]
    target = {"url": url, "secret": secret, "kinds": ["job_ended"]}
    assert world.ask("PUT", f"{hooks}/site", "own admin", json=target, headers={"If-Match": changed}).status_code == 200
    assert world.ask("DELETE", f"{hooks}/site", "own admin").status_code == 204


def test_paths_that_lead_nowhere_tell_nothing_without_a_token(world):
    for path in (
        "/nowhere",
        "/v1/jobs/",
        "//v1/jobs",
        f"/v1/jobs/{OWN}/",
        f"/v1//jobs/{OWN}",
        f"/V1/jobs/{OWN}",
        "/v1/jobs/%2e%2e",
    ):
        assert_problem(world.client.get(path), 401, "unauthenticated")
        response = world.ask("GET", path, "stranger")
        assert response.status_code == 404, path
        assert response.json()["error"]["code"] == "not_found"
    assert world.ask("PUT", f"/v1/jobs/{OWN}", "own reader").status_code == 403
    assert world.ask("PUT", f"/v1/jobs/{OWN}", "own admin").status_code == 405


@pytest.mark.parametrize(
    "disguise", [f"{OWN}%00", f"%6c{OWN[1:]}", f"{OTHER}%2F..%2F{OWN}", f"{OTHER}%2F{OWN}", f"{OWN}%3F", f"{OWN};x"]
)
@pytest.mark.parametrize("rest", ["", "/plan", "/events"])
def test_disguised_names_do_not_pass(world, disguise, rest):
    response = world.ask("GET", f"/v1/jobs/{disguise}{rest}", "stranger")
    assert response.status_code == 404
    assert '"decision"' not in response.text
    assert '"events"' not in response.text


def test_rules_speak_of_routes_that_are_there(world):
    there = {(method, operation.path) for operation in operations_of(world.client.app.routes) for method in operation.methods}
    stale = {rule for rule in RULES if rule not in there and not rule[1].startswith("/dashboard") and rule[1] != "/"}
    assert not stale


def test_what_nobody_thought_about_asks_for_much():
    unknown = need_of("POST", "/v1/new"), need_of("GET", "/v1/new"), need_of("PATCH", "/v1/jobs/{job}/new")
    assert [(need.scope.value, need.all_jobs) for need in unknown] == [("administer", True), ("read", True), ("administer", False)]
    assert all(not need.is_open for need in unknown)
    assert {path for (_, path), need in RULES.items() if need.is_open} == OPEN_PATHS
