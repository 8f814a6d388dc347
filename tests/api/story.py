"""A short story that asks the service everything once: its questions and answers are the examples of the OpenAPI document.

    python -m tests.api.story

writes them to `api/http/examples.json`. Whoever adds an operation adds a line to `tell`.
"""

import base64
import json
import re
import tempfile
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from api import logs
from api.access.tokens import NewToken
from api.access.vault import Vault
from api.app import create_app
from api.http.description import EXAMPLES
from api.settings import Settings
from api.storage.store import Store
from kintsugi.core import codec
from tests.api.requests import event, report
from tests.api.webhooks.receiver import Receiver, receiver
from tests.builders import uniform_profile

MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
SITE = re.compile(r"http://127\.0\.0\.1:\d+")
TOKEN = re.compile(r"kgi_[0-9a-f]{16}_[\w-]{43}")
RANDOM_ID = re.compile(r"[0-9a-f]{16}|[0-9a-f]{32}")
AN_ID = "0123456789abcdef"
A_TOKEN = f"kgi_{AN_ID}_{'0123456789' * 4}abc"
A_MOMENT = "2026-01-31T12:00:00.000000Z"
SECRET = f"whsec_{base64.b64encode(b'an example of thirty-two bytes!!').decode()}"
PARAMETERS = {
    "job": "llama",
    "generation": 1,
    "webhook": "site",
    "delivery": "plan_decided.1",
    "token": AN_ID,
    "limit": 100,
    "run": "run7",
    "key": "address",
}


class Recorder:
    """Asks a service and keeps what was said; moments and measured times become the same every time."""

    def __init__(self, client: TestClient) -> None:
        self._client = client
        self.made: dict[str, Any] = {}
        """Parameters that the service chose itself."""
        self.examples: dict[str, Any] = {"operations": {}, "parameters": PARAMETERS, "problems": {}}

    def ask(self, operation: str, body: Any = None, status: int = 200, **named: Any) -> Any:
        """The answer to `operation`, such as `GET /v1/jobs/{job}`, which becomes an example."""
        method, path = operation.split(" ")
        response = self._client.request(method, path.format_map({**PARAMETERS, **self.made}), json=body, **named)
        assert response.status_code == status, response.text
        example = self.examples["operations"].setdefault(operation, {"responses": {}})
        if body is not None:
            example.setdefault("request", _steady(body))
        if response.content:
            example["responses"].setdefault(str(status), _steady(_content(response)))
        return response.json() if response.content and "json" in response.headers["Content-Type"] else None

    def end_streams(self) -> None:
        """From now on streams tell what there is and end."""
        self._client.app.state.tail.close()
        self._client.app.state.overlays.close()

    def forget(self, operation: str) -> None:
        """Drop an example that came too early."""
        del self.examples["operations"][operation]

    def be_refused(self, status: int, method: str, path: str, **named: Any) -> None:
        """Record a problem of this status."""
        response = self._client.request(method, path, **named)
        assert response.status_code == status, response.text
        self.examples["problems"][str(status)] = _steady(response.json())


def new_job() -> dict[str, Any]:
    """The smallest job that shows everything."""
    settings = {"num_microbatches": 4}
    return {"id": "llama", "profile": codec.encode(uniform_profile(2)), "workers": 4, "workers_per_host": 2, "settings": settings}


def tell(record: Recorder, site: Receiver) -> None:
    """Everything that can be asked, once, in an order that makes sense; webhooks go to `site`."""
    record.ask("POST /v1/jobs", new_job(), 201)
    record.ask("POST /v1/jobs", new_job(), 200)
    record.ask("GET /v1/jobs")
    record.ask("GET /v1/jobs/{job}")
    _hooks(record, site)
    decided = record.ask("POST /v1/jobs/{job}/events", event("host1-xid79", 0, "w03", detail="XID 79"))
    record.ask("GET /v1/jobs/{job}/events")
    record.ask("GET /v1/jobs/{job}/plan")
    record.ask("GET /v1/jobs/{job}/plans/{generation}")
    record.ask("GET /v1/jobs/{job}/plans/{generation}/trace")
    record.ask("GET /v1/jobs/{job}/plans/{generation}/export", params={"format": "megatron"})
    record.ask("POST /v1/jobs/{job}/reports", report(1, measured={"step": 120, "iteration_seconds": 1.25}), 201)
    record.ask("GET /v1/jobs/{job}/reports")
    alive = {"host": "h00", "workers": ["w00", "w01"], "observed_at": A_MOMENT, "step": 121}
    record.ask("POST /v1/jobs/{job}/heartbeats", alive)
    record.ask("GET /v1/jobs/{job}/contingencies", params={"limit": 1})
    claim = {"holder": "w00", "agreement": '{"generation":1,"members":["w00","w01"]}'}
    record.ask("POST /v1/jobs/{job}/generations/{generation}/lease", claim, 201)
    record.ask("POST /v1/jobs/{job}/generations/{generation}/lease", claim)
    record.ask("GET /v1/jobs/{job}/generations/{generation}/lease")
    _studies(record, decided["decision"]["plan"])
    _overlay(record)
    meeting = {"value": base64.b64encode(b"127.0.0.1").decode(), "expected_version": 0, "generation": 1}
    record.ask("PUT /v1/rendezvous/{run}/{key}", meeting)
    record.ask("GET /v1/rendezvous/{run}/{key}")
    record.ask("DELETE /v1/rendezvous/{run}/{key}", status=204)
    _deliveries(record, site)
    _handling(record)
    _tokens(record)
    for path in ("/healthz", "/readyz", "/metrics"):
        record.ask(f"GET {path}")
    record.end_streams()
    for path in ("/v1/stream", "/v1/jobs/{job}/stream"):
        record.ask(f"GET {path}", params={"after": 0, "kinds": "event"})
    record.ask("GET /v1/jobs/{job}/overlay/stream")


def _overlay(record: Recorder) -> None:
    """A worker that joins another one over a link that is measured, so that the state is on its way to it."""
    joined = {"kind": "worker_joined", "address": "10.0.0.1:7000", "state_bytes": 8_388_608, "shard_bytes": 4_096}
    record.ask("POST /v1/jobs/{job}/overlay/events", {**joined, "id": "joined-w00-0", "worker": "w00"})
    again = {**joined, "id": "joined-w01-0", "worker": "w01", "address": "10.0.0.2:7000", "neighbors": ["w00"]}
    record.ask("POST /v1/jobs/{job}/overlay/events", again)
    measured = {"kind": "link_measured", "link": ["w00", "w01"], "alpha_seconds": 0.01, "beta_seconds_per_byte": 1e-08}
    record.ask("POST /v1/jobs/{job}/overlay/events", {**measured, "id": "measured-w00-w01-1"})
    record.forget("POST /v1/jobs/{job}/overlay/events")
    record.ask("POST /v1/jobs/{job}/overlay/events", {**measured, "id": "measured-w00-w01-2"})
    record.ask("GET /v1/jobs/{job}/overlay")
    record.ask("POST /v1/jobs/{job}/overlay/heartbeats", {"worker": "w01", "generation": 3, "step": 17})
    record.ask("GET /v1/jobs/{job}/overlay/heartbeats")
    record.ask("GET /v1/jobs/{job}/overlay/log", params={"after": 1, "limit": 1})


def _handling(record: Recorder) -> None:
    """A plan that waits for somebody, and an event that waits for others."""
    record.made["job"] = "careful"
    record.ask("POST /v1/jobs", {**new_job(), "id": "careful", "handling": {"requires_approval": True}}, 201)
    proposed = record.ask("POST /v1/jobs/{job}/events", event("host0-xid79", 0, "w01"))
    said = {"decision": "approve", "by": "Ada", "decided_at": proposed["decided_at"]}
    record.ask("POST /v1/jobs/{job}/plans/{generation}/approval", said)
    record.ask("GET /v1/jobs/{job}/approvals")
    record.ask("POST /v1/jobs/{job}/ending", {"outcome": "completed", "by": "Ada"})
    record.made["job"] = "patient"
    record.ask("POST /v1/jobs", {**new_job(), "id": "patient", "handling": {"coalesce_seconds": 600}}, 201)
    record.ask("POST /v1/jobs/{job}/events", event("host0-xid79", 0, "w01"), 202, params={"wait_seconds": 0})
    del record.made["job"]


def _tokens(record: Recorder) -> None:
    asked = {"name": "the trainer", "scope": "report", "job": "llama", "expires_in_seconds": 2_592_000}
    record.made["token"] = record.ask("POST /v1/tokens", asked, 201)["token"]["id"]
    record.ask("GET /v1/tokens")
    record.ask("DELETE /v1/tokens/{token}")
    record.ask("GET /v1/audit", params={"limit": 1})


def _hooks(record: Recorder, site: Receiver) -> None:
    hook = {"url": site.url, "secret": SECRET, "kinds": ["plan_decided"]}
    for status in (201, 200):
        record.ask("POST /v1/jobs/{job}/webhooks", {"id": "site", **hook}, status)
    record.ask("GET /v1/jobs/{job}/webhooks")
    record.ask("GET /v1/jobs/{job}/webhooks/{webhook}")
    record.ask("PUT /v1/jobs/{job}/webhooks/{webhook}", hook)


def _deliveries(record: Recorder, site: Receiver) -> None:
    site.wait_for(1)
    while (listed := record.ask("GET /v1/jobs/{job}/webhooks/{webhook}/deliveries"))["deliveries"][0]["status"] == "pending":
        record.forget("GET /v1/jobs/{job}/webhooks/{webhook}/deliveries")
    assert listed["deliveries"][0]["status"] == "delivered"
    record.ask("POST /v1/jobs/{job}/webhooks/{webhook}/deliveries/{delivery}/retry")
    record.ask("DELETE /v1/jobs/{job}/webhooks/{webhook}", status=204)


def _studies(record: Recorder, plan: dict[str, Any]) -> None:
    whole = {key: value for key, value in new_job().items() if key in ("profile", "workers", "workers_per_host")}
    record.ask("POST /v1/estimates", {**whole, "plan": plan})
    record.ask("POST /v1/whatif", {"job": "llama", "fail": ["w00"]})
    values = {"duration": 3_600, "spares": 1}
    record.ask("POST /v1/simulations", {"scenario": "chameleon-32", "values": values, "policies": ["oobleck"], "seeds": 1})


def refuse(record: Recorder) -> None:
    """One refusal of every status."""
    record.ask("POST /v1/jobs", new_job(), 201)
    content = {"Content-Type": "application/json"}
    hook = {"url": "https://example.com/kintsugi", "secret": SECRET}
    record.ask("POST /v1/jobs/{job}/webhooks", {"id": "site", **hook}, 201)
    events = "/v1/jobs/llama/events"
    record.be_refused(400, "POST", events, content=b'{"kind": ', headers=content)
    record.be_refused(404, "GET", "/v1/jobs/gemma")
    record.be_refused(409, "POST", events, json=event("early", 7, "w02"))
    record.be_refused(412, "PUT", "/v1/jobs/llama/webhooks/site", json=hook, headers={"If-Match": '"old"'})
    record.be_refused(413, "POST", events, content=b" " * 20_000, headers=content)
    record.be_refused(415, "POST", events, content=b"kind=worker_failed", headers={"Content-Type": "text/plain"})
    record.be_refused(422, "POST", events, json=event("vague", 0))


def refuse_strangers(url: str) -> dict[str, Any]:
    """Refusals of a service that asks for tokens, by status."""
    store = Store(url)
    store.open()
    secret = Vault(store.database).issue(NewToken(name="looker")).secret
    store.close()
    settings = Settings(database_url=url, plans_ahead=False, require_tokens="always", max_failed_sign_ins_per_minute=1)
    with TestClient(create_app(settings)) as client:
        record = Recorder(client)
        for status in (401, 429):
            record.be_refused(status, "GET", "/v1/jobs")
        record.be_refused(403, "POST", "/v1/jobs/llama/events", headers={"Authorization": f"Bearer {secret}"})
    problems: dict[str, Any] = record.examples["problems"]
    return problems


def recorded() -> dict[str, Any]:
    """All examples, as a service on an empty database gives them now."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/story.sqlite3"
        settings = Settings(
            database_url=url,
            plans_ahead=False,
            max_simulation_seconds=600,
            overlay_timeout_seconds=3_600,
            require_tokens="never",  # it goes on to tell after it has issued one
        )
        small = settings.model_copy(update={"database_url": f"sqlite:///{folder}/refusals.sqlite3", "max_body_bytes": 10_000})
        with TestClient(create_app(settings)) as client, receiver() as site:
            record = Recorder(client)
            tell(record, site)
        with TestClient(create_app(small)) as client:
            refusing = Recorder(client)
            refuse(refusing)
            client.app.state.watch.close()
            refusing.be_refused(503, "GET", "/readyz")
        strangers = refuse_strangers(f"sqlite:///{folder}/strangers.sqlite3")
    return {**record.examples, "problems": {**refusing.examples["problems"], **strangers}}


def _content(response: Any) -> Any:
    if "json" in response.headers["Content-Type"]:
        return response.json()
    if "event-stream" in response.headers["Content-Type"]:
        return response.text
    return "\n".join(line for line in response.text.splitlines() if "kintsugi_events_total" in line)


def _steady(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _steady(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [_steady(item) for item in value]
    if name == "elapsed_seconds":
        return 0.001
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if not isinstance(value, str):
        return value
    told = SITE.sub("https://example.com", MOMENT.sub(A_MOMENT, TOKEN.sub(A_TOKEN, value)))
    return AN_ID if RANDOM_ID.fullmatch(told) else told


if __name__ == "__main__":
    logs.configure(Settings(log_level="error"))
    Path(EXAMPLES).write_text(json.dumps(recorded(), indent=1, sort_keys=True) + "\n")
