"""Workers join, leave and fail while the others train; replicas stay bitwise equal, and no step has two sums."""

from collections.abc import Sequence

import pytest

from kintsugi.core.overlay import OverlayEventKind
from kintsugi.runtime.overlay.rounds import GivenUpError
from tests.runtime.overlay.crew import Crew, Line, cut, replayed


def test_workers_join_and_leave_a_running_job():
    crew = Crew()
    crew.start("a").await_steps(2)
    crew.start("b", ("a",)).await_steps(2)
    crew.start("c", ("a", "b")).await_steps(3)
    leaver = crew.members["a"]
    leaver.is_leaving.set()
    leaver.join(30)
    crew.members["c"].await_steps(6)
    crew.finish()
    check(crew)
    assert crew.desk.now.restarts == 0
    assert crew.desk.num(OverlayEventKind.WORKER_FAILED) == 0


def check(crew: Crew) -> None:
    """Replicas were bitwise equal after every step, and the losses are those of an uninterrupted run."""
    check_lines(crew.lines)


def check_lines(lines: Sequence[Line]) -> None:
    """As `check`, for what workers wrote down."""
    digests: dict[int, set[str]] = {}
    for line in lines:
        digests.setdefault(line.number, set()).add(line.digest)
    assert all(len(found) == 1 for found in digests.values())
    losses = replayed(lines)
    for line in lines:
        if line.worker in line.contributors:
            assert line.loss == pytest.approx(losses[line.step - 1][line.worker], rel=1e-12, abs=1e-14)


def test_a_worker_is_lost_in_the_middle_of_a_reduction():
    crew = Crew()
    crew.start("a").await_steps(1)
    for worker, neighbors in (("b", ("a",)), ("c", ("a", "b")), ("d", ("b", "c"))):
        crew.start(worker, neighbors).await_steps(1)
    crew.members["d"].pause_seconds = 30.0
    crew.members["d"].await_steps(1)
    crew.members["b"].strike()
    crew.desk.until(lambda overlay: overlay.restarts > 0)
    crew.members["d"].pause_seconds = 0.0
    crew.members["d"].is_leaving.set()
    crew.members["c"].await_steps(crew.members["c"].num_steps + 3)
    crew.finish()
    check(crew)
    assert crew.desk.now.restarts == 1


def test_a_link_is_cut_and_the_reduction_goes_around_it():
    crew = Crew()
    crew.start("a").await_steps(1)
    crew.start("b", ("a",)).await_steps(1)
    crew.start("c", ("a", "b")).await_steps(2)
    used = crew.desk.now.synchronization.parents
    cut(crew, *next(iter(used.items())))
    overlay = crew.desk.until(lambda overlay: overlay.restarts > 0)
    assert set(overlay.synchronization.order) == {"a", "b", "c"}
    assert overlay.synchronization.parents != used
    for member in crew.members.values():
        member.await_steps(member.num_steps + 3)
    before_anybody_left = list(crew.lines)
    crew.finish()
    check(crew)
    assert all(line.contributors == ("a", "b", "c") for line in before_anybody_left if line.worker == "c")


def test_links_are_asked_for_and_given_up_at_the_end_of_a_step():
    crew = Crew()
    crew.start("a").await_steps(1)
    crew.start("b", ("a",)).await_steps(1)
    crew.start("c", ("a",)).await_steps(1)
    crew.members["b"].coordinator.connect_link("c")
    crew.desk.until(lambda overlay: any(link.between == ("b", "c") and link.is_measured for link in overlay.links))
    crew.members["c"].coordinator.disconnect_link("a")
    crew.desk.until(lambda overlay: all(link.between != ("a", "c") for link in overlay.links))
    for member in crew.members.values():
        member.await_steps(member.num_steps + 3)
    assert crew.members["a"].coordinator.links.await_none(0.0) is False
    before_anybody_left = list(crew.lines)
    crew.finish()
    check(crew)
    assert crew.desk.now.restarts == 0
    assert all(line.contributors == ("a", "b", "c") for line in before_anybody_left if line.worker == "c")


def test_a_worker_that_was_cut_off_is_told_so_and_joins_again():
    crew = Crew()
    crew.start("a").await_steps(1)
    crew.start("b", ("a",)).await_steps(1)
    lost = crew.start("c", ("a",))
    lost.await_steps(1)
    cut(crew, "a", "c")
    lost.join(60)
    assert isinstance(lost.error, GivenUpError)
    lost.coordinator.close()
    again = crew.start("c", ("b",))
    again.await_steps(2)
    crew.finish()
    check(crew)
    assert again.coordinator.links.identity.incarnation == 1
