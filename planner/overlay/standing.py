"""What follows for the workers from how the links stand: who is cut off, and who waits for a link."""

from dataclasses import replace

from kintsugi.core.overlay import Overlay, WorkerState
from planner.overlay.synchronization import counting
from planner.overlay.topology import components, cut_off, fail_workers, find_worker, in_state, put_worker, up_links

UNCONNECTED = "none of its links leads to an active worker; connect one"


def settled(overlay: Overlay) -> Overlay:
    """The overlay of one part: workers that are cut off from it have failed, and joining ones without a way to it stand by."""
    return _standing_by(_of_one_part(overlay))


def _of_one_part(overlay: Overlay) -> Overlay:
    """Of several parts without a link between them the one goes on that holds most workers that count.

    Of equal ones it is that of the worker that joined first. Nobody votes: one scheduler decides, and whoever follows it knows.
    """
    workers = counting(overlay)
    parts = components(workers, up_links(overlay, workers))
    if len(parts) < 2:
        return overlay
    active = set(in_state(overlay, WorkerState.ACTIVE))
    kept = max(parts, key=lambda part: (len(active.intersection(part)), -workers.index(part[0])))
    lost = [worker for part in parts if part is not kept for worker in part]
    detail = f"cut off from the part of {kept[0]}, which goes on with {len(kept)} of {len(workers)}; join again over another link"
    return fail_workers(overlay, lost, detail)


def _standing_by(overlay: Overlay) -> Overlay:
    """Joining workers that no wanted or connected link leads to whoever counts stand by."""
    joining = in_state(overlay, WorkerState.JOINING)
    among = (*counting(overlay), *joining)
    links = [link for link in overlay.links if set(link.between) <= set(among)]
    counts = set(counting(overlay))
    for part in components(among, links):
        if counts.isdisjoint(part):
            for worker in part:
                known = find_worker(overlay, worker)
                assert known is not None
                overlay = put_worker(cut_off(overlay, worker), replace(known, state=WorkerState.STANDBY, detail=UNCONNECTED))
    return overlay
