"""Overlays over HTTP: events in, generations out, heard and waited for; the log gives them again."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from starlette.testclient import TestClient

from api.app import create_app
from kintsugi.core import codec
from kintsugi.core.overlay import Overlay
from kintsugi.core.overlay_messages import OverlayLog
from planner.overlay.negotiation import negotiate
from planner.overlay.topology import empty_overlay

OVERLAY = "/v1/jobs/llama/overlay"
JOINED = {"address": "h:7000", "state_bytes": 1 << 20, "shard_bytes": 1 << 10}


def tell(client, kind, event, expected=200, **told):
    response = client.post(f"{OVERLAY}/events", json={"kind": kind, "id": event, **told})
    assert response.status_code == expected, response.text
    return response.json()


def join(client, worker, *neighbors, status=200, **told):
    return tell(client, "worker_joined", f"joined-{worker}", status, **{**JOINED, "worker": worker, "neighbors": neighbors, **told})


def measure(client, *link, event=None):
    told = {"link": link, "alpha_seconds": 0.01, "beta_seconds_per_byte": 1e-8}
    return tell(client, "link_measured", event or f"measured-{'-'.join(link)}", **told)


def pair(client):
    """Two active workers."""
    join(client, "w00")
    join(client, "w01", "w00")
    measure(client, "w00", "w01")
    return tell(client, "state_replicated", "replicated-w01", worker="w01")


@pytest.mark.both_databases
def test_the_log_alone_gives_the_overlay_again(client, database_url):
    told = pair(client)
    log = codec.decode(OverlayLog, client.get(f"{OVERLAY}/log").json())
    overlay = empty_overlay("llama")
    for entry in log.entries:
        overlay = negotiate(overlay, entry.event, entry.at)
        assert (overlay.generation, overlay.term) == (entry.generation, entry.term)
    assert codec.encode(overlay) == told == client.get(OVERLAY).json()
    assert [entry.number for entry in log.entries] == [1, 2, 3, 4]
    assert log.last_number == 4
    page = client.get(f"{OVERLAY}/log", params={"after": 1, "limit": 2}).json()
    assert [entry["number"] for entry in page["entries"]] == [2, 3]


def test_the_same_event_again_changes_nothing_and_another_under_its_id_is_refused(client):
    before = pair(client)
    assert join(client, "w00") == before
    assert tell(client, "worker_draining", "joined-w00", 409, worker="w00")["error"]["field"] == "id"
    assert client.get(f"{OVERLAY}/log").json()["last_number"] == 4


def test_what_is_refused_is_not_in_the_log(client):
    pair(client)
    refused = join(client, "w02", "w09", status=404)
    assert refused["error"]["field"] == "neighbors[0]"
    assert refused["error"]["message"].startswith(f"names {refused['error']['value']!r}, which is not in the overlay")
    assert tell(client, "worker_draining", "drain", 409, worker="w00", incarnation=0, term=9)["error"]["code"] == "stale_term"
    assert client.get(OVERLAY, params={"term": 9}).json()["error"]["current_term"] == 9
    assert client.get(f"{OVERLAY}/log").json()["last_number"] == 4


@pytest.mark.parametrize("name", ["..", ".", "x%0Ay", "%1B%5B2J", "%E2%80%AE"])
def test_a_name_that_nobody_can_read_or_ask_for_begins_no_overlay(client, name):
    path = f"/v1/jobs/{name.replace('.', '%2E')}/overlay/events"
    refused = client.post(path, json={"kind": "worker_joined", "id": "a", "worker": "w00", **JOINED})
    assert (refused.status_code, refused.json()["error"]["field"]) == (422, "job")


def test_nobody_joined_yet(client):
    for path in ("", "/log", "/heartbeats"):
        assert client.get(OVERLAY + path).status_code == 404
    assert client.post(f"{OVERLAY}/heartbeats", json={"worker": "w00"}).status_code == 404


def test_those_who_wait_are_told_of_the_next_generation(client):
    generation = pair(client)["generation"]
    assert client.get(OVERLAY, params={"after_generation": generation}).status_code == 204
    with ThreadPoolExecutor(3) as threads:
        asked = {"after_generation": generation, "wait_seconds": 30}
        overlays = [threads.submit(client.get, OVERLAY, params=asked) for _ in range(2)]
        log = threads.submit(client.get, f"{OVERLAY}/log", params={"after": 4, "wait_seconds": 30})
        told = tell(client, "worker_draining", "drain", worker="w01")
        assert [waited.result(240.0).json() for waited in overlays] == [told, told]
        assert log.result(240.0).json()["entries"][0]["event"]["id"] == "drain"
    assert client.get(OVERLAY, params={"after_generation": 1, "wait_seconds": 30}).json() == told


def test_an_overlay_outlives_the_service(client, settings):
    told = pair(client)
    with TestClient(create_app(settings)) as another:
        assert another.get(OVERLAY).json() == told
        later = tell(another, "worker_draining", "drain", worker="w01")
        waited = client.get(OVERLAY, params={"after_generation": told["generation"], "wait_seconds": 30})
        assert waited.json() == later
        assert codec.decode(Overlay, later).generation == told["generation"] + 1


def test_an_overlay_that_is_known_is_not_sent_again(client):
    pair(client)
    tag = client.get(OVERLAY).headers["ETag"]
    assert client.get(OVERLAY, headers={"If-None-Match": tag}).status_code == 304


def test_heartbeats_tell_how_everybody_is(client):
    generation = pair(client)["generation"]
    beat = {"worker": "w01", "generation": 3, "step": 17, "synchronization_seconds": 0.25, "received_bytes": 5}
    answer = client.post(f"{OVERLAY}/heartbeats", json=beat).json()
    assert (answer["generation"], answer["term"]) == (generation, 1)
    (sign,) = client.get(f"{OVERLAY}/heartbeats").json()["signs"]
    assert sign["heartbeat"] == {**beat, "incarnation": 0, "term": 0}
    told = tell(client, "worker_draining", "drain", worker="w00")
    assert [worker["synchronization_seconds"] for worker in told["workers"]] == [None, 0.25]
    tell(client, "worker_failed", "failed", worker="w01")
    refused = client.post(f"{OVERLAY}/heartbeats", json=beat)
    assert refused.json()["error"]["incarnations"] == {"w01": 0}
    assert client.post(f"{OVERLAY}/heartbeats", json={**beat, "worker": "w09"}).status_code == 404


def test_a_scheduler_that_was_told_of_a_later_one_decides_nothing_more(client):
    pair(client)
    assert client.post(f"{OVERLAY}/heartbeats", json={"worker": "w01", "term": 2}).json()["error"]["code"] == "stale_term"
    assert join(client, "w02", "w00", status=409)["error"]["current_term"] == 2
    assert client.post(f"{OVERLAY}/heartbeats", json={"worker": "w00"}).json()["error"]["code"] == "stale_term"
    assert client.get(f"{OVERLAY}/log").json()["last_number"] == 4
    taken = tell(client, "scheduler_changed", "scheduler-3", worker="w00", address="http://h:1", term=3)
    assert taken["term"] == 3
    join(client, "w02", "w00")


def test_an_overlay_is_not_taken_over_with_another_ones_name_and_what_is_heard_of_it_stays_with_it(client):
    pair(client)
    other = "/v1/jobs/other/overlay"
    joined = {"kind": "worker_joined", "id": "a", "worker": "w00", **JOINED}
    overlay = client.post(f"{other}/events", json=joined).json()
    changed = {"kind": "scheduler_changed", "id": "b", "worker": "w00", "address": "http://h:1", "term": 2}
    for seen, field in (({"name": "llama", "generation": 9}, "name"), ({"generation": 2**63 - 1}, "generation")):
        refused = client.post(f"{other}/events", json={**changed, "overlay": {**overlay, **seen}})
        assert (refused.status_code, refused.json()["error"]["field"]) == (422, f"overlay.{field}")
    assert client.get(other).json() == overlay
    assert client.post(f"{other}/heartbeats", json={"worker": "w00", "term": 9}).json()["error"]["code"] == "stale_term"
    join(client, "w02", "w00")
