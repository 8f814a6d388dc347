"""Links that workers ask for so that no single loss parts them."""

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest

from kintsugi.core.overlay import LinkState, Overlay, OverlayLink, OverlayWorker, WorkerState
from kintsugi.core.overlay_messages import OverlayEventKind
from kintsugi.runtime.overlay.greeting import Identity
from kintsugi.runtime.overlay.redundancy import Redundancy, is_parted_by_one, ring_neighbors
from planner.overlay.topology import components, empty_overlay
from tests.runtime.overlay.crew import Crew


def overlay_of(workers: str, *links: str) -> Overlay:
    """Active workers in the order in which they joined, and links between them."""
    found = (OverlayWorker(id=one, address="h:1", state=WorkerState.ACTIVE, joined_at="", incarnation=1) for one in workers)
    between = (OverlayLink(between=(min(one), max(one)), state=LinkState.UP) for one in links)
    return replace(empty_overlay("job"), workers=tuple(found), links=tuple(between))


def asked_by(worker: str, *overlays: Overlay) -> list[str]:
    """The links that a worker asks for as it hears of one overlay after another."""
    asked: list[str] = []

    def tell(kind: OverlayEventKind, _: str, *, link: tuple[str, str], detail: str) -> None:
        assert kind is OverlayEventKind.LINK_CONNECTED
        asked.append("".join(link))

    redundancy = Redundancy(SimpleNamespace(identity=Identity(job="job", worker=worker), teller=SimpleNamespace(tell=tell)))
    for overlay in overlays:
        redundancy.heed(overlay)
    return asked


def test_a_star_becomes_a_ring_that_each_of_its_losses_leaves_connected():
    star = overlay_of("abcde", "ab", "ac", "ad", "ae")
    asked = {worker: asked_by(worker, star) for worker in "abcde"}
    assert asked == {"a": [], "b": [], "c": ["bc"], "d": ["cd"], "e": ["de"]}
    ring = overlay_of("abcde", "ab", "ac", "ad", "ae", *(link for found in asked.values() for link in found))
    assert is_parted_by_one(star)
    assert not is_parted_by_one(ring)
    path = overlay_of("bcde", "bc", "cd", "de")
    assert {worker: asked_by(worker, path) for worker in "bcde"} == {"b": [], "c": [], "d": [], "e": ["be"]}


@pytest.mark.parametrize("num_workers", range(3, 9))
@pytest.mark.parametrize("num_hubs", [1, 2, 4])
def test_whatever_is_missing_of_the_ring_is_asked_for_only_where_one_loss_parts_the_others(num_workers, num_hubs):
    workers = "abcdefgh"[:num_workers]
    links = [hub + other for index, other in enumerate(workers) for hub in workers[: min(index, num_hubs)]]
    overlay = overlay_of(workers, *links)
    asked = {worker: asked_by(worker, overlay) for worker in workers}
    fragile = any(
        len(components([one for one in workers if one != lost], [link for link in overlay.links if lost not in link.between])) > 1
        for lost in workers
    )
    assert is_parted_by_one(overlay) == fragile
    assert any(asked.values()) == fragile
    if fragile:
        ring = {*map("".join, pairwise(workers)), workers[0] + workers[-1]}
        assert ring <= {*links, *(link for found in asked.values() for link in found)}


def test_a_link_is_asked_for_once_in_the_life_of_its_other_end():
    star = overlay_of("abc", "ab", "ac")
    gone = overlay_of("ac", "ac")
    later = replace(star, workers=tuple(replace(one, incarnation=2) if one.id == "b" else one for one in star.workers))
    assert asked_by("c", star, star) == ["bc"]
    assert asked_by("c", star, gone, star) == ["bc"]
    assert asked_by("c", star, gone, later, later) == ["bc", "bc"]


def test_nobody_asks_before_it_counts_nor_for_those_who_are_about_to_leave():
    star = overlay_of("abcd", "ab", "ac", "ad")

    def with_state(worker: str, state: WorkerState) -> Overlay:
        return replace(star, workers=tuple(replace(one, state=state) if one.id == worker else one for one in star.workers))

    assert not asked_by("d", with_state("d", WorkerState.JOINING))
    assert asked_by("d", with_state("c", WorkerState.DRAINING)) == ["bd"]
    assert [one.id for one in ring_neighbors(overlay_of("ab", "ab"), "b")] == ["a"]


def test_links_that_users_named_are_not_added_to():
    crew = Crew()
    for worker, neighbors in (("a", None), ("b", ("a",)), ("c", ("b",)), ("d", ("c",))):
        crew.start(worker, neighbors).await_steps(2)
    crew.members["a"].await_steps(crew.members["a"].num_steps + 3)
    links = {"".join(link.between) for link in crew.desk.now.links}
    crew.finish()
    assert links == {"ab", "bc", "cd"}
