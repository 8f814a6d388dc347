"""A worker whose replica became another by chance is found before anybody adds its gradients, and is done without."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from kintsugi.core.errors import InvalidInputError
from kintsugi.core.overlay import Overlay, Shape, WorkerState
from kintsugi.core.overlay_messages import OverlayEvent, OverlayEventKind
from kintsugi.runtime.overlay.committed import GivenUpError
from kintsugi.runtime.overlay.comparing import Comparison, DisagreementError, States, WrongPeersError, WrongStateError
from kintsugi.runtime.overlay.inbox import CalledOffError
from kintsugi.runtime.overlay.options import OverlayOptions
from kintsugi.runtime.verdicts import Vote
from tests.runtime.overlay.crew import OPTIONS, Crew, Member
from tests.runtime.overlay.desk import Desk
from tests.runtime.overlay.test_churn import check


class Mishap:
    """One bit of a worker's replica turns over in its next step, when told so."""

    def __init__(self, crew: Crew, worker: str, flipped: Callable[[Member], torch.Tensor]) -> None:
        self._crew, self._worker, self._flipped = crew, worker, flipped
        self.is_due, self.step = False, -1

    def __call__(self) -> None:
        if self.is_due:
            self.is_due = False
            member = self._crew.members[self._worker]
            self.step = member.coordinator.step
            self._flipped(member).detach().view(-1).view(torch.int64)[3] ^= 1 << 40


def parameter(member: Member) -> torch.Tensor:
    return member.model[0].weight


def moment(member: Member) -> torch.Tensor:
    return member.coordinator.trained.optimizer.state[member.model[2].weight]["exp_avg_sq"]


class FlatDesk(Desk):
    """Knows links of which a byte costs more than a message: a ring is the best for three."""

    def post(self, event: OverlayEvent) -> Overlay:
        if event.kind is OverlayEventKind.LINK_MEASURED:
            event = replace(event, alpha_seconds=1e-9, beta_seconds_per_byte=1e-3)
        return super().post(event)


def started(crew: Crew, flipped: Callable[[Member], torch.Tensor], unlucky: str = "b", num_workers: int = 3) -> Mishap:
    """A crew in which one worker may have a mishap; all take part."""
    mishap = Mishap(crew, unlucky, flipped)
    workers = "abcd"[:num_workers]
    for index, worker in enumerate(workers):
        arguments = {"before_step": mishap} if worker == unlucky else {}
        crew.start(worker, tuple(workers[:index]) or None, **arguments).await_steps(1)
    for worker in workers:
        crew.members[worker].await_steps(crew.members[worker].num_steps + 2)
    return mishap


@pytest.mark.parametrize(
    ("flipped", "unlucky", "desk", "shape"),
    [
        (parameter, "a", Desk, Shape.TREE),
        (moment, "c", Desk, Shape.TREE),
        (parameter, "c", FlatDesk, Shape.RING),
        (moment, "a", FlatDesk, Shape.RING),
    ],
)
def test_who_holds_another_state_than_most_ends_before_its_gradients_count_and_joins_again(flipped, unlucky, desk, shape):
    crew = Crew(desk())
    mishap = started(crew, flipped, unlucky)
    assert crew.desk.now.synchronization.shape is shape
    lost = crew.members[unlucky]
    mishap.is_due = True
    lost.join(60.0)
    assert isinstance(lost.error, WrongStateError)
    assert isinstance(lost.error, GivenUpError)
    assert "holds something else than most before reduction" in str(lost.error)
    with pytest.raises(GivenUpError, match="holds something else than most"):
        lost.coordinator.update()
    lost.error = None
    lost.is_struck.set()  # its last line is of what it held by mistake
    kept = next(worker for worker in crew.members if worker != unlucky)
    crew.members[kept].await_steps(crew.members[kept].num_steps + 3)
    after = [line for line in crew.lines if line.step > mishap.step + 1]
    assert all(unlucky not in line.contributors for line in after)
    (failed,) = [event for event in crew.desk.events if event.kind is OverlayEventKind.WORKER_FAILED]
    assert failed.worker == unlucky
    assert "test its memory and processors" in failed.detail
    assert crew.desk.now.restarts == 1
    again = crew.start(unlucky + "2", (kept,))
    again.await_steps(2)
    crew.finish()
    check(crew)


def test_the_others_go_on_where_nobody_hears_why_it_ends():
    crew = Crew()
    mishap = started(crew, parameter)
    lost = crew.members["b"]
    lost.is_struck.set()  # what it tells reaches nobody
    mishap.is_due = True
    lost.join(60.0)
    for worker in ("a", "c"):
        crew.members[worker].await_steps(crew.members[worker].num_steps + 3)
    crew.finish()
    check(crew)


def test_two_that_differ_both_end_since_nobody_can_tell():
    crew = Crew()
    started(crew, parameter, num_workers=2).is_due = True
    require_all_end(crew)


def require_all_end(crew: Crew) -> None:
    for worker, member in crew.members.items():
        member.join(60.0)
        assert isinstance(member.error, DisagreementError), worker
        assert "a, b do not hold the same before reduction" in str(member.error)
        member.error = None
    crew.desk.until(lambda overlay: all(one.state is WorkerState.FAILED for one in overlay.workers))
    crew.finish()


@pytest.mark.parametrize("late", ["a", "b"])
def test_who_was_called_off_before_it_knew_hears_of_it_and_ends_too(monkeypatch, late):
    judge = Comparison.require_alike

    def called_off(comparison: Comparison, number: int, states: States) -> None:
        try:
            judge(comparison, number, states)
        except DisagreementError:
            if comparison._worker == late:
                raise CalledOffError("called off") from None
            raise

    monkeypatch.setattr(Comparison, "require_alike", called_off)
    crew = Crew()
    started(crew, parameter, num_workers=2).is_due = True
    require_all_end(crew)


@pytest.mark.parametrize("every", [None, 5])
def test_states_are_compared_as_often_as_the_options_say(every):
    crew = Crew(options=replace(OPTIONS, compare_every_steps=every))
    mishap = started(crew, parameter)
    mishap.is_due = True
    lost = crew.members["b"]
    if every is None:
        lost.await_steps(lost.num_steps + 12)
    else:
        lost.join(60.0)
        compared = range(mishap.step + 2, mishap.step + 2 + every)
        (number,) = [number for number in compared if number % every == 0]
        assert f"before reduction {number}:" in str(lost.error)
        lost.error = None
    crew.finish()
    digests = {line.digest for line in crew.lines if line.step == mishap.step + 1}
    assert len(digests) == 2


@pytest.mark.parametrize("every", [0, -1, 1.5, True])
def test_states_are_compared_after_whole_numbers_of_reductions(every):
    with pytest.raises(InvalidInputError, match="compare_every_steps"):
        OverlayOptions(compare_every_steps=every)


def test_a_worker_says_what_it_holds_only_before_reductions_that_are_compared():
    for every, told in ((None, []), (1, [1, 2, 3, 4, 5, 6]), (3, [3, 6])):
        one = Comparison("a", lambda: Vote(1, 5), every)
        assert [number for number in range(1, 7) if one.told(number)] == told
    assert one.told(3) == {"a": (1, 5, 1)}


def test_who_has_its_state_from_others_is_a_witness_once_it_was_compared():
    one = Comparison("a", lambda: Vote(1, 5), 1)
    one.copied()
    assert one.told(1) == {"a": (1, 5, 0)}
    one.require_alike(1, {})  # the others did not compare
    assert one.told(2) == {"a": (1, 5, 0)}
    one.require_alike(2, {"a": (1, 5, 0), "b": (1, 5, 1)})
    assert one.told(3) == {"a": (1, 5, 1)}


def test_who_is_wrong_is_told_apart_from_who_is_right():
    states = {"a": (1, 5, 1), "b": (1, 6, 1), "c": (1, 5, 1), "d": (2, 9, 1)}
    with pytest.raises(WrongStateError, match="b"):
        Comparison("b", lambda: Vote(1, 6), 1).require_alike(4, states)
    with pytest.raises(WrongPeersError) as raised:
        Comparison("a", lambda: Vote(1, 5), 1).require_alike(4, states)
    assert raised.value.worker == "b"
    Comparison("d", lambda: Vote(2, 9), 1).require_alike(4, {worker: state for worker, state in states.items() if worker != "b"})


def test_those_who_copied_a_state_do_not_outvote_the_one_they_have_it_from():
    states = {"a": (1, 5, 1), "b": (1, 6, 1), "c": (1, 6, 0), "d": (1, 6, 0)}
    for worker in states:
        with pytest.raises(DisagreementError, match="nobody can tell"):
            Comparison(worker, lambda: Vote(1, 6), 1).require_alike(4, states)
