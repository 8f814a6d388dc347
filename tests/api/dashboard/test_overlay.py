"""The page of an overlay: what it says of workers and links, and who may ask a worker to leave."""

from api.dashboard.formats import ABSENT
from api.dashboard.overlay import picture_of, rate_words, used_links
from kintsugi.core.overlay import Shape, WorkerState
from kintsugi.core.overlay_messages import OverlayHeartbeat, OverlaySign, OverlaySigns
from tests.api.access.world import OWN, guarded
from tests.planner.overlay.world import MIB, World, mesh

PAGE = "/dashboard/jobs/llama/overlay"
EVENTS = "/v1/jobs/llama/overlay/events"
ORIGIN = {"Origin": "http://testserver"}
NOBODY = OverlaySigns(signs=())


def joined(worker, *neighbors):
    told = {"kind": "worker_joined", "id": worker, "worker": worker, "neighbors": neighbors, "address": "h:1"}
    return told | {"state_bytes": 64 * MIB, "shard_bytes": MIB}


def growing():
    """Two active workers, one that fetches, one that connects, one that failed."""
    world = mesh("w00", "w01")
    world.join("w02", "w00", "w01")
    for other in ("w00", "w01"):
        world.measure(other, "w02")
    world.join("w03", "w00")
    world.grow("w04", "w00")
    world.tell("worker_failed", worker="w04", detail="power")
    return world


def sign(worker, **told):
    return OverlaySign(heartbeat=OverlayHeartbeat(worker=worker, **told), heard_at="2026-01-31T12:00:00Z")


def test_the_picture_says_what_goes_over_which_link():
    signs = OverlaySigns(signs=(sign("w02", received_bytes=16 * MIB), sign("w00", synchronization_seconds=0.5)))
    picture = picture_of(growing().overlay, signs, may_leave=True)
    edges = {edge.link.between: (edge.kind, edge.carries) for edge in picture.edges}
    assert edges[("w00", "w01")] == ("used", False)
    assert edges[("w00", "w03")] == ("wanted", False)
    assert sorted((edges[("w00", "w02")], edges[("w01", "w02")])) == [("heard", True), ("idle", True)]
    (fetching,) = picture.fetching
    assert fetching.received_ratio == 0.25
    assert picture.measured_seconds == 0.5
    assert picture.kinds == {"used", "heard", "idle", "wanted", "carries"}
    marks = {node.worker.id: node.mark for node in picture.nodes}
    assert (marks["w02"], marks["w04"], sorted(marks[w] for w in ("w00", "w01"))) == ("+", "✕", ["", "R"])
    assert [node.worker.id for node in picture.nodes if not node.can_leave] == ["w04"]
    assert len({(node.x, node.y) for node in picture.nodes}) == 5
    assert all(0 < node.x < picture.width and 0 < node.y < picture.height for node in picture.nodes)


def test_a_ring_is_closed_and_its_listeners_hang_on():
    world = mesh("w00", "w01", "w02", "w03")
    assert world.overlay.synchronization.shape is Shape.RING
    world.join("w04", "w00")
    policy = world.measure("w00", "w04").synchronization
    links = used_links(policy)
    assert sorted(links.values()) == ["heard", "used", "used", "used", "used"]
    roles = {node.worker.id: node.role for node in picture_of(world.overlay, NOBODY, may_leave=False).nodes}
    assert roles["w04"] == "Listens to w00."
    assert "in the ring" in roles["w00"]


def test_one_worker_stands_in_the_middle():
    world = World()
    world.join("w00")
    picture = picture_of(world.overlay, NOBODY, may_leave=True)
    assert (picture.nodes[0].x, picture.edges, picture.nodes[0].neighbors) == (picture.width / 2, (), ABSENT)


def test_rates_are_told_per_second():
    world = mesh("w00", "w01")
    world.measure("w00", "w01", beta=8e-8)
    assert rate_words(world.overlay.links[0]) == "12.5 MB/s"
    world.measure("w00", "w01", beta=0.0)
    assert rate_words(world.overlay.links[0]) == "no limit"


def test_a_worker_is_asked_to_leave_by_its_button(client):
    assert client.get(PAGE).status_code == 404
    client.post(EVENTS, json=joined("w00"))
    client.post(EVENTS, json=joined("w01", "w00"))
    page = client.get(PAGE)
    assert page.status_code == 200
    assert 'id="leave-w01"' in page.text
    assert "llama" in client.get("/dashboard").text
    form = {"worker": "w00", "incarnation": "0"}
    assert client.post(f"{PAGE}/leave", data=form).status_code == 403
    told = client.post(f"{PAGE}/leave", data=form, headers=ORIGIN, follow_redirects=False)
    assert (told.status_code, told.headers["Location"]) == (303, f"{PAGE}#worker-w00")
    overlay = client.get("/v1/jobs/llama/overlay").json()
    assert overlay["workers"][0]["state"] == WorkerState.DRAINING.value
    assert "sked to leave on the dashboard" in client.get(PAGE).text
    assert client.post(f"{PAGE}/leave", data={"worker": "w00"}, headers=ORIGIN).status_code == 422
    assert client.post(f"{PAGE}/leave", data={**form, "worker": "w09"}, headers=ORIGIN).status_code == 404


def test_the_stream_tells_every_newer_overlay(client):
    client.post(EVENTS, json=joined("w00"))
    client.app.state.overlays.close()
    text = client.get("/v1/jobs/llama/overlay/stream").text
    assert "event: overlay" in text
    assert "id: 1" in text
    assert '"generation":1' in text


def test_only_who_may_report_sees_and_uses_the_button(database_url):
    with guarded(database_url) as world:
        path = f"/dashboard/jobs/{OWN}/overlay"
        told = world.ask("POST", f"/v1/jobs/{OWN}/overlay/events", "own reporter", json=joined("w00"))
        assert told.status_code == 200
        form = {"data": {"worker": "w00", "incarnation": "0"}, "headers": ORIGIN}
        for name, shown, status in (("own reader", False, 403), ("stranger", None, 404), ("own reporter", True, 303)):
            page = world.ask("GET", path, name)
            assert page.status_code == (404 if shown is None else 200)
            assert ('id="leave-w00"' in page.text) == bool(shown)
            assert world.ask("POST", f"{path}/leave", name, **form).status_code == status, name
