"""A worker whose replica became another by chance is found before anybody adds its gradients, and is done without."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import pytest
import torch

from kintsugi.core.errors import InvalidInputError
from kintsugi.core.overlay import Overlay, Shape, WorkerState
from kintsugi.core.overlay_messages import OverlayEvent, OverlayEventKind
from kintsugi.runtime.overlay.committed import GivenUpError
from kintsugi.runtime.overlay.comparing import Comparison, DisagreementError, WrongPeersError, WrongStateError
from kintsugi.runtime.overlay.greeting import Identity
from kintsugi.runtime.overlay.inbox import CalledOffError
from kintsugi.runtime.overlay.messages import Channel, Message
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
    lost.join(120.0)
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
    lost.join(120.0)
    for worker in ("a", "c"):
        crew.members[worker].await_steps(crew.members[worker].num_steps + 3)
    crew.finish()
    check(crew)


def test_two_that_differ_both_end_since_nobody_can_tell():
    crew = Crew()
    started(crew, parameter, num_workers=2).is_due = True
    require_all_end(crew)


def require_all_end(crew: Crew, names: str = "a, b") -> None:
    for worker, member in crew.members.items():
        member.join(120.0)
        with pytest.raises(DisagreementError, match=f"{names} do not hold the same"):
            member.coordinator.update()
        assert member.error is None or isinstance(member.error, DisagreementError), worker
        member.error = None
    crew.desk.until(lambda overlay: all(one.state is WorkerState.FAILED for one in overlay.workers))
    crew.finish()


@pytest.mark.parametrize("late", ["a", "b"])
@pytest.mark.parametrize("hears_neighbors", [True, False])
def test_who_was_called_off_before_it_knew_hears_of_it_and_ends_too(monkeypatch, late, hears_neighbors):
    judge = Comparison.require_alike
    if not hears_neighbors:
        monkeypatch.setattr(Comparison, "hear", lambda *_: None)

    def called_off(comparison: Comparison, number: int, states: Mapping[str, Sequence[int]]) -> None:
        try:
            judge(comparison, number, states)
        except DisagreementError:
            if comparison._own.worker == late:
                comparison._disagreement = None
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
        lost.join(120.0)
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


def comparison(worker: str, digest: int, every: int | None = 1) -> Comparison:
    return Comparison(Identity(job="job", worker=worker, incarnation=2), lambda: Vote(1, digest), every)


def test_a_worker_says_what_it_holds_only_before_reductions_that_are_compared():
    for every, told in ((None, []), (1, [1, 2, 3, 4, 5, 6]), (3, [3, 6])):
        one = comparison("a", 5, every)
        assert [number for number in range(1, 7) if one.statement(number)] == told
    assert one.statement(3) == {"a": (1, 5, 1, 2)}


def test_who_has_its_state_from_others_is_a_witness_once_it_was_compared():
    one = comparison("a", 5)
    one.copied()
    assert one.statement(1) == {"a": (1, 5, 0, 2)}
    one.require_alike(1, {})  # the others did not compare
    assert one.statement(2) == {"a": (1, 5, 0, 2)}
    one.require_alike(2, {"a": (1, 5, 0, 2), "b": (1, 5, 1, 0)})
    assert one.statement(3) == {"a": (1, 5, 1, 2)}


def test_who_was_compared_with_nobody_of_its_kind_is_no_witness():
    one = comparison("a", 5)
    one.copied()
    one.require_alike(1, {"a": (1, 5, 0, 2), "b": (2, 9, 1, 0)})
    assert one.statement(2) == {"a": (1, 5, 0, 2)}


def test_who_is_wrong_is_told_apart_from_who_is_right():
    states = {"a": (1, 5, 1, 0), "b": (1, 6, 1, 3), "c": (1, 5, 1, 0), "d": (2, 9, 1, 0)}
    with pytest.raises(WrongStateError, match="b"):
        comparison("b", 6).require_alike(4, states)
    with pytest.raises(WrongPeersError) as raised:
        comparison("a", 5).require_alike(4, states)
    assert raised.value.workers == {"b": 3}
    comparison("d", 9).require_alike(4, {worker: state for worker, state in states.items() if worker != "b"})


def said(worker: str, digest: int, *, is_witness: bool = True, kind: int = 1) -> dict[str, tuple[int, ...]]:
    return {worker: (kind, digest, int(is_witness), 0)}


def test_those_who_copied_a_state_do_not_outvote_the_one_they_have_it_from():
    states = said("a", 5) | said("b", 6) | said("c", 6, is_witness=False) | said("d", 6, is_witness=False)
    for worker in states:
        with pytest.raises(DisagreementError, match="nobody can tell"):
            comparison(worker, 6).require_alike(4, states)


def test_who_joined_ends_where_it_alone_stands_against_its_source_and_not_where_others_that_joined_agree():
    """It may be what it was sent; a source against several that it sent the same has erred since, or they all in the same way."""
    alone = said("a", 5) | said("b", 6, is_witness=False)
    with pytest.raises(WrongStateError, match="by what it was sent or since: join again"):
        comparison("b", 6).require_alike(4, alone)
    with pytest.raises(WrongPeersError):
        comparison("a", 5).require_alike(4, alone)
    with pytest.raises(DisagreementError):
        comparison("a", 5).require_alike(4, alone | said("c", 6, is_witness=False))


def test_those_who_differ_end_where_others_on_devices_of_another_kind_agree():
    states = said("a", 5) | said("b", 5) | said("y", 6, kind=2) | said("z", 7, kind=2)
    for worker in "yz":
        with pytest.raises(WrongStateError):
            comparison(worker, 6).require_alike(4, states)
    with pytest.raises(WrongPeersError) as raised:
        comparison("a", 5).require_alike(4, states)
    assert set(raised.value.workers) == {"y", "z"}


def test_a_disagreement_is_of_those_who_were_in_it_in_their_lives_of_then():
    for lives, is_meant in (({"a": 2, "b": 0}, True), ({"a": 1, "b": 0}, False), ({"b": 0, "c": 0}, False)):
        one = comparison("a", 5)
        one.hear("b", Message(Channel.CONTROL, "disagree", {"number": 9, "workers": lives}))
        if is_meant:
            with pytest.raises(DisagreementError, match="a, b do not hold the same before reduction 9") as raised:
                one.require_agreement()
            assert (raised.value.workers, raised.value.lives, raised.value.number) == (("a", "b"), lives, 9)
        else:
            one.require_agreement()


def test_all_who_disagree_end_two_against_two():
    """A chain: whoever ends first cuts another one off, which hears why it is lost, be it from the scheduler."""
    crew = Crew()
    struck_at: list[int] = []

    def flip(worker: str) -> None:
        member = crew.members[worker]
        if struck_at and member.coordinator.step == struck_at[0]:
            parameter(member).detach().view(-1).view(torch.int64)[3] ^= 1 << 40

    for index, worker in enumerate("abcd"):
        arguments = {"before_step": partial(flip, worker)} if worker in "cd" else {}
        crew.start(worker, ("abcd"[index - 1],) if index else None, **arguments).await_steps(2)
    for member in crew.members.values():
        member.pause_seconds = 0.01
    struck_at.append(crew.members["a"].coordinator.step + 20)
    require_all_end(crew, "a, b, c, d")


def leaving_struck(member: Member) -> Callable[[], None]:
    """It leaves with a bit that is another."""
    leave = member.coordinator.request_node_exit

    def leaves() -> None:
        parameter(member).detach().view(-1).view(torch.int64)[3] ^= 1 << 40
        leave()

    return leaves


@pytest.mark.parametrize(("num_workers", "expected"), [(2, DisagreementError), (3, WrongStateError)])
def test_who_leaves_with_another_state_is_told_so(num_workers, expected):
    crew = Crew()
    started(crew, parameter, num_workers=num_workers)
    leaver = crew.members["b"]
    leaver.coordinator.request_node_exit = leaving_struck(leaver)
    leaver.is_leaving.set()
    leaver.join(120.0)
    assert isinstance(leaver.error, expected)
    leaver.error = None
    if num_workers == 2:
        require_all_end(crew)
    else:
        crew.finish()


def test_who_was_found_wrong_does_not_stand_against_one_that_knows_where_a_third_dies_meanwhile(monkeypatch):
    judge, crew = Comparison.require_alike, Crew()
    is_struck = threading.Event()

    def interrupted(comparison: Comparison, number: int, states: Mapping[str, Sequence[int]]) -> None:
        """Worker b is called off before it judges, for a dies once c has judged."""
        try:
            judge(comparison, number, states)
        except WrongStateError:
            if not is_struck.is_set():
                raise CalledOffError("called off") from None
            raise
        except WrongPeersError:
            if comparison._own.worker == "c" and not is_struck.is_set():
                is_struck.set()
                threading.Thread(target=crew.members["a"].strike).start()
            raise

    monkeypatch.setattr(Comparison, "require_alike", interrupted)
    started(crew, parameter).is_due = True
    lost = crew.members["b"]
    lost.join(120.0)
    assert isinstance(lost.error, GivenUpError)
    lost.error = None
    lost.is_struck.set()
    crew.members["c"].await_steps(crew.members["c"].num_steps + 3)
    crew.finish()
    check(crew)
