"""Metrics keep Prometheus' naming rules, and tell jobs by state without naming them."""

import re

import pytest

from api.metrics import Metrics
from tests.api.access.world import OWN, guarded
from tests.api.requests import EVENTS, JOB, REPORTS, event, report

UNITS = ("seconds", "bytes", "ratio")
SCALED = ("millisecond", "microsecond", "minute", "hour", "kilobyte", "megabyte", "percent")


def lint(family):
    """What promtool would say of a metric family."""
    base = family.name.removesuffix("_total")
    yield from [] if re.fullmatch(r"kintsugi_[a-z][a-z0-9_]*", base) else ["is no lower-case name with the prefix"]
    yield from [] if family.documentation.strip().endswith(".") else ["has no sentence of help"]
    yield from [f"is in {scaled}s, no base unit" for scaled in SCALED if scaled in base]
    if family.type == "histogram" and not base.endswith(UNITS):
        yield "measures something and does not end with its unit"
    if family.type == "counter" and not all(s.name.endswith(("_total", "_created")) for s in family.samples):
        yield "counts and does not end with _total"
    if family.type == "gauge" and base.endswith(("_total", "_count", "_sum", "_bucket")):
        yield "is a gauge with the suffix of another type"
    for sample in family.samples:
        for label in sample.labels.keys() & {"job", "worker", "host", "generation"}:
            yield f"has a label {label}: as many series as there are of them"


def test_names_keep_the_rules():
    families = list(Metrics().registry.collect())
    assert len(families) > 8
    assert {family.name: list(lint(family)) for family in families if list(lint(family))} == {}


@pytest.mark.parametrize(
    ("name", "kind", "why"),
    [
        ("kintsugi_wait_milliseconds", "histogram", "no base unit"),
        ("kintsugi_size", "histogram", "unit"),
        ("Jobs", "gauge", "prefix"),
    ],
)
def test_broken_rules_are_noticed(name, kind, why):
    from prometheus_client.core import Metric

    assert any(why in problem for problem in lint(Metric(name, "Help.", kind)))


def states(client):
    lines = client.get("/metrics").text.splitlines()
    return {line.split('"')[1]: float(line.split()[-1]) for line in lines if line.startswith("kintsugi_jobs{")}


def test_jobs_by_state(client, job):
    assert states(client) == {"applied": 1.0, "decided": 0.0, "unplanned": 0.0, "ended": 0.0}
    client.post(EVENTS, json=event("a", 0, "w00"))
    assert states(client) == {"applied": 0.0, "decided": 1.0, "unplanned": 0.0, "ended": 0.0}
    client.post(REPORTS, json=report(1))
    assert states(client) == {"applied": 1.0, "decided": 0.0, "unplanned": 0.0, "ended": 0.0}
    client.post(f"{JOB}/ending", json={"outcome": "completed"})
    assert states(client) == {"applied": 0.0, "decided": 0.0, "unplanned": 0.0, "ended": 1.0}
    assert 'kintsugi_endings_total{outcome="completed"} 1.0' in client.get("/metrics").text


def test_events_without_a_plan_are_counted_by_reason(client, job):
    lost = [event(f"e{n}", 0, f"w{n:02d}") for n in range(6)]
    assert client.post(EVENTS, json={"events": lost}).status_code == 409
    text = client.get("/metrics").text
    assert re.search(r'kintsugi_plan_refusals_total\{code="\w+"\} 1\.0', text)
    assert states(client)["unplanned"] == 1.0


def counted(text):
    """Method, route and status of all requests that were answered."""
    return set(re.findall(r'kintsugi_http_requests_total\{method="(\w+)",route="([^"]*)",status="(\d+)"\}', text))


def test_what_is_refused_before_a_route_answers_counts_as_the_routes(database_url):
    with guarded(database_url, max_body_bytes=1_000_000) as world:
        events = f"/v1/jobs/{OWN}/events"
        world.client.post(events, json={})
        world.ask("POST", events, "reader", json={})
        world.ask("POST", events, "reporter", content=b"x" * 2_000_000)
        world.client.request("BREW", "/v1/pots/1")
        found = counted(world.ask("GET", "/metrics", "admin").text)
    template = "/v1/jobs/{job}/events"
    assert {("POST", template, status) for status in ("401", "403", "413")} <= found
    assert {("_OTHER", "unknown", "401")} == {one for one in found if one[1] == "unknown"}
