"""Browsers sign in with a token, and only pages of the service itself change something."""

import anyio
import pytest
from starlette.requests import Request
from starlette.testclient import TestClient

from api.access.sessions import form_of, safe_target
from tests.api.access.world import OWN, guarded
from tests.api.requests import event

SITE = "http://testserver"
SAME = {"Origin": SITE}
FOREIGN = [
    {},
    {"Origin": "null"},
    {"Origin": "http://evil.example"},
    {"Origin": "https://testserver"},
    {"Sec-Fetch-Site": "cross-site"},
]


@pytest.fixture
def world(database_url):
    with guarded(database_url, max_failed_sign_ins_per_minute=3, trusted_proxies=["10.0.0.5/32"]) as world:
        yield world


def sign_in(client, secret, headers=SAME, **fields):
    return client.post("/login", data={"token": secret, **fields}, headers=headers, follow_redirects=False)


def test_from_a_page_to_the_form_and_back(world):
    client, page = world.client, "/dashboard/jobs/tortoise/why?generation=0"
    asked = client.get(page, follow_redirects=False)
    assert asked.status_code == 303
    form = client.get(asked.headers["Location"])
    assert form.status_code == 200
    assert form.headers["Cache-Control"] == "no-store"
    assert f'name="next" value="{page}"' in form.text
    assert "Sign out" not in form.text
    answer = sign_in(client, f" {world.secrets['own reader']}\n", next=page)
    assert (answer.status_code, answer.headers["Location"]) == (303, page)
    assert "Sign out" in client.get(page).text
    assert client.get("/dashboard/jobs/gemma").status_code == 404


def test_the_cookie_is_for_this_site_alone(world):
    cookie = sign_in(world.client, world.secrets["reader"]).headers["Set-Cookie"]
    assert cookie.startswith("kintsugi=kgi_")
    assert {"HttpOnly", "SameSite=strict", "Path=/", "Max-Age=43200"} <= set(cookie.split("; "))
    assert "Secure" not in cookie
    proxied = {"Origin": "https://testserver", "X-Forwarded-Proto": "https", "X-Forwarded-For": "203.0.113.9"}
    behind = TestClient(world.client.app, client=("10.0.0.5", 1))
    cookie = sign_in(behind, world.secrets["reader"], proxied).headers["Set-Cookie"]
    assert cookie.startswith("__Host-kintsugi=kgi_")
    assert "Secure" in cookie.split("; ")
    assert "Domain" not in cookie


def test_who_signs_out_is_signed_out(world):
    sign_in(world.client, world.secrets["admin"])
    assert world.client.get("/v1/jobs").status_code == 200
    answer = world.client.post("/logout", headers=SAME, follow_redirects=False)
    assert (answer.status_code, answer.headers["Location"]) == (303, "/login")
    assert world.client.get("/v1/jobs").status_code == 401


@pytest.mark.parametrize("headers", FOREIGN)
def test_other_sites_neither_sign_in_nor_out_nor_write(world, headers):
    assert sign_in(world.client, world.secrets["admin"], headers).status_code == 403
    sign_in(world.client, world.secrets["admin"])
    lost = event("a", 0, "w05")
    assert world.client.post("/logout", headers=headers).status_code == 403
    refused = world.client.post(f"/v1/jobs/{OWN}/events", json=lost, headers=headers)
    assert refused.status_code == 403
    assert refused.json()["error"]["field"] == "Origin"
    assert "must be http://testserver, as" in refused.json()["error"]["message"]
    assert "have that pass Host and X-Forwarded-Proto" in refused.json()["error"]["message"]
    assert world.client.post(f"/v1/jobs/{OWN}/events", json=lost, headers=SAME).status_code == 200
    assert world.ask("POST", f"/v1/jobs/{OWN}/events", "admin", json=lost, headers=headers).status_code == 200


def test_a_token_that_is_not_usable_is_told_and_guessing_is_slowed_down(world):
    for secret in ("nonsense", world.secrets["expired"], world.secrets["revoked"]):
        answer = sign_in(world.client, secret)
        assert answer.status_code == 401
        assert "not usable" in answer.text
        assert "Set-Cookie" not in answer.headers
        assert secret not in answer.text
    assert sign_in(world.client, "").status_code == 429


@pytest.mark.parametrize("body", [b"\xff\xfe", b"a=1&" * 50, b"token=" + b"x" * 100_000, b""])
def test_a_body_that_is_no_form_signs_nobody_in(world, body):
    assert world.client.post("/login", content=body, headers=SAME).status_code == 401


def test_of_a_form_without_end_only_the_beginning_is_taken():
    taken = []

    async def receive():
        taken.append(b"a" * 1_000)
        return {"type": "http.request", "body": taken[-1], "more_body": len(taken) < 1_000}

    assert anyio.run(form_of, Request({"type": "http"}, receive)) == {}
    assert len(taken) < 10


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("/dashboard/jobs/a?x=1", True),
        ("/dashboard", True),
        (None, False),
        ("https://evil.example", False),
        ("//evil.example", False),
        ("/\\evil.example", False),
        ("/dashboard/\\evil.example", False),
        ("/dashboards", False),
        ("/dashboard/a\r\nSet-Cookie: x=y", False),
        ("javascript:alert(1)", False),
    ],
)
def test_the_way_back_leads_to_the_dashboard_alone(target, expected):
    assert safe_target(target) == (target if expected else "/dashboard")
