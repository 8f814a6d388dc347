"""The protocol on paper: worlds of `benchmarks.membership`, all of them, and what a seeded mistake does to them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.membership.draft import Draft
from benchmarks.membership.exploration import FAULTS, explore, violated
from benchmarks.membership.network import Network
from benchmarks.membership.world import World
from kintsugi.runtime.ring import quorum, transition
from kintsugi.runtime.ring.messages import Accept, Agreement, Message, Reconcile, Restart
from kintsugi.runtime.ring.signals import Action, Committed, Decided, Install, Lost, Received, Record, Send
from kintsugi.runtime.ring.state import State
from kintsugi.runtime.ring.wire import framed, frames
from kintsugi.runtime.selfgoverned.notes import Note
from kintsugi.runtime.workers.commit import CommitRecord

SPLIT = Network(4, can_crash=False, can_freeze=False, can_cut=False, can_split=True, commits=False)
"""Cut in two parts, of which each member hears when it likes."""


@pytest.mark.parametrize(
    ("network", "faults"),
    [
        (Network(2), 2),
        (Network(3, can_cut=False), 1),
        (Network(3, can_break=True), 1),
        (Network(3, can_freeze=False, can_cut=False), 2),
        (Network(3, can_freeze=False, can_cut=False, can_miss=True), 2),
        (Network(4, can_freeze=False, can_cut=False, can_miss=True, commits=False), 2),
        (Network(5, can_freeze=False, can_cut=False, commits=False), 2),
        (Network(4, can_freeze=False, can_break=True, commits=False), 1),
        (Network(2, can_cut=False, hurries=True), 1),
        (SPLIT, 1),
        (Network(1, can_join=True), 1),
        (Network(2, can_join=True, can_freeze=False, can_cut=False), 2),
        (Network(3, can_freeze=False, can_cut=False, can_split=True, hurries=True), 1),
    ],
)
def test_every_world_keeps_the_claims(network: Network, faults: int) -> None:
    report = explore(network, faults)
    assert (report.violation, report.trace) == ("", ())
    assert report.is_complete
    assert report.num_states > 40


@pytest.mark.parametrize(
    ("network", "faults"),
    [
        (Network(4, can_freeze=False, can_break=True), 1),
        (Network(3, can_crash=False, can_cut=False), 1),
        (Network(3, can_crash=False, can_freeze=False, commits=False), 2),
        (Network(3, can_freeze=False, can_cut=False), 2),
        (Network(3, can_freeze=False, can_cut=False, can_miss=True), 2),
        (Network(2, can_join=True, can_freeze=False), 1),
        (Network(3, can_freeze=False, can_cut=False, can_split=True, hurries=True), 1),
        (Network(4, can_crash=False, can_freeze=False, can_cut=False, can_split=True, commits=False), 1),
    ],
)
def test_fewer_worlds_show_all_that_members_may_come_to_and_how_it_may_end(network: Network, faults: int) -> None:
    reduced, ends = visited(network, faults)
    network.reduces = False
    every, all_ends = visited(network, faults)
    network.reduces = True
    assert len(reduced) < len(every)
    assert {world.states for world in reduced} == {world.states for world in every}
    assert ends == {network.settled(Draft(world)) for world in all_ends}
    assert {violated(network, world) for world in every} == {""}


def visited(network: Network, faults: int) -> tuple[set[World], set[World]]:
    """Every world, and those in which nothing more happens but faults."""
    waiting = [network.initial(faults)]
    known, ends = set(waiting), set()
    while waiting:
        world = waiting.pop()
        steps = list(network.next(world))
        if all(event[0] in FAULTS or after == world for event, after in steps):
            ends.add(world)
        waiting += (new := {after for _, after in steps} - known)
        known |= new
    return known, ends


@pytest.mark.parametrize("reduces", [True, False])
def test_a_mistake_is_found_in_fewer_worlds_as_well(monkeypatch: pytest.MonkeyPatch, *, reduces: bool) -> None:
    monkeypatch.setattr(transition, "may_propose", lambda *_: True)
    report = explore(Network(3, can_crash=False, can_freeze=False, commits=False, reduces=reduces), 2)
    assert report.violation == "two memberships of generation 1"
    assert "cut" in report.trace[0]


def test_who_has_another_connection_by_now_hears_that_the_one_before_is_gone() -> None:
    """Before the breaks were heard of, two members took back the third one, whose message went over the earlier connection."""
    network = Network(3, can_crash=False, can_freeze=False, can_cut=False, can_break=True, hurries=True, commits=False)
    world = network.initial(2)
    way = ["break a c", "break b c", "deliver b a", "found b c", "deliver a b", "deliver b c", "found a c", "deliver a b"]
    for wanted in way:
        world = next(after for event, after in network.next(world) if event[:3] == tuple(wanted.split()))
    assert ("replaced", "c", "a") in [event for event, _ in network.next(world)]


def test_an_exploration_that_is_broken_off_says_so() -> None:
    assert not explore(Network(3), 1, most_states=50).is_complete


def test_an_acceptance_without_a_majority_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transition, "is_majority", lambda *_: True)
    report = explore(Network(2, can_cut=False), 1)
    assert report.violation == "two memberships of generation 1"
    assert report.trace[0].startswith("freeze")


def test_asking_the_lease_for_a_minority_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transition, "may_propose", lambda *_: True)
    report = explore(Network(3, commits=False), 1)
    assert report.violation == "two memberships of generation 1"


def test_a_restart_before_all_accepted_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def hasty(state: State, message: transition.Reconcile | transition.Accept, choose: transition.Choose) -> transition.Step:
        if isinstance(message, transition.Accept):
            return transition._install(state, message.proposal.agreement, choose)
        return passed_on(state, message, choose)

    passed_on = transition._pass_on
    monkeypatch.setattr(transition, "_pass_on", hasty)
    report = explore(Network(3, can_cut=False, commits=False), 2)
    assert report.violation.startswith("two memberships of generation")


def test_a_loss_of_messages_that_nobody_says_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transition, "_missed", lambda state, *_: (state, ()))
    report = explore(Network(3, can_freeze=False, can_cut=False, can_miss=True), 2)
    assert report.violation == "a membership is mended for ever"


def test_a_commit_after_the_contribution_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(State, "is_stopped", property(lambda state: state.is_left_out))
    assert explore(Network(3, can_freeze=False, can_cut=False), 1).violation == "a survivor lost a step that it had committed"


def test_a_decision_that_the_lease_does_not_learn_of_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Network._told
    monkeypatch.setattr(Network, "_told", lambda self, action: () if isinstance(action, Record) else told(self, action))
    assert explore(Network(3, can_crash=False, can_cut=False, can_split=True), 1).violation == "a member is behind for ever"


def test_a_loss_that_nobody_mends_is_mended_by_whoever_knows_of_it() -> None:
    state = State("c", Agreement(0, ("a", "b", "c", "d")), 0)
    state, actions = transition.transition(state, Lost("b"), lambda _: "")
    assert actions == ()
    state, (sends,) = transition.transition(state, Lost("b", is_reported=True), lambda _: "")
    assert isinstance(sends, Send)
    assert sends.worker == "d"
    assert transition.transition(state, Lost("b", is_reported=True), lambda _: "") == (state, ())


@settings(deadline=None)
@given(st.integers(1, 9).flatmap(lambda size: st.tuples(st.just(range(size)), st.sets(st.integers(0, size - 1)))))
def test_who_may_propose_meets_every_majority(case: tuple[range, set[int]]) -> None:
    members, ring = case
    others = set(members) - ring
    assert quorum.may_propose(ring, (), members) == (not quorum.is_majority(len(others), len(members)))
    assert quorum.may_propose(ring, others, members)


class Post:
    """Delivers all messages of a ring at once, in order, without losing any, and counts them."""

    def __init__(self, size: int, note: str = "") -> None:
        self.note = note
        self.names = tuple(f"w{index:02d}" for index in range(size))
        self.states = {name: State(name, Agreement(0, self.names), 7) for name in self.names}
        self.sent = dict.fromkeys(self.names, 0)
        self.on_the_way: list[tuple[str, Send]] = []

    def feed(self, worker: str, signal: transition.Signal) -> None:
        if worker in self.states:
            self.states[worker], actions = transition.transition(self.states[worker], signal, lambda _: self.note)
            self._act(worker, actions)

    def _act(self, worker: str, actions: tuple[Action, ...]) -> None:
        sends = [action for action in actions if isinstance(action, Send)]
        self.sent[worker] += len(sends)
        self.on_the_way += [(worker, send) for send in sends]

    def lose(self, lost: set[str]) -> None:
        """All at once; whoever talks to a lost one finds it gone."""
        for name in lost:
            del self.states[name]
        for name in self.names:
            if name in self.states:
                for gone in sorted(self.states[name].neighbours & lost):
                    self.feed(name, Lost(gone))
        while self.on_the_way:
            self.deliver()

    def deliver(self) -> Message:
        """One message, or the loss of whom it is meant for."""
        sender, send = self.on_the_way.pop(0)
        if send.worker in self.states:
            self.feed(send.worker, Received(sender, send.message))
        else:
            self.feed(sender, Lost(send.worker, is_certain=True))
        return send.message


@given(
    st.integers(3, 40).flatmap(lambda size: st.tuples(st.just(size), st.sets(st.integers(0, size - 1), max_size=(size - 1) // 2)))
)
def test_messages_of_a_worker_are_linear_in_the_losses(case: tuple[int, set[int]]) -> None:
    size, indices = case
    post = Post(size)
    lost = {post.names[index] for index in indices}
    post.lose(lost)
    left = tuple(name for name in post.names if name not in lost)
    assert {state.agreement.members for state in post.states.values()} == {left}
    assert max(post.sent.values()) <= 4 * len(lost)  # however many members there are
    if lost:
        assert {state.committed_step for state in post.states.values()} == {7}


def test_what_many_had_accepted_when_another_was_lost_travels_once() -> None:
    """A proposal holds the plan and every worker's note: with one in each promise no frame would be long enough."""
    post = Post(128, note="a plan" * 2_000)
    note = Note(0, CommitRecord(step=8, squared_norm=1.25, loss=2.5, microbatches=(1,) * 512)).text()
    for name in post.names:
        post.feed(name, Committed(8, note))
    del post.states["w01"]
    post.feed("w00", Lost("w01", is_certain=True))
    while not isinstance(message := post.deliver(), Accept) or len(message.accepted_by) < 120:
        pass
    del post.states[post.on_the_way[0][1].worker]
    largest = 0
    while post.on_the_way:
        message = post.deliver()
        if isinstance(message, Reconcile) and message.generation == 0 and len(message.promises) in (64, 126):
            assert sum(promise.accepted is not None for promise in message.promises) == 1
            [received] = frames(bytearray(framed(message)))
            assert received == message
            largest = max(largest, len(message.promises))
    assert largest == 126
    assert {(state.agreement.generation, len(state.agreement.members)) for state in post.states.values()} == {(2, 126)}


def test_who_is_behind_is_told_the_generation_that_goes_on() -> None:
    agreement = Agreement(0, ("a", "b", "c"))
    following = Agreement(1, ("a", "b"))
    ahead, _ = transition.transition(State("a", agreement, 0), Decided(following), lambda _: "")
    _, actions = transition.transition(State("c", agreement, 0), Lost("a"), lambda _: "")
    (asks,) = actions
    assert isinstance(asks, Send)
    after, (answer,) = transition.transition(ahead, Received("c", asks.message), lambda _: "")
    assert (after, answer) == (ahead, Send("c", Restart(following)))
    out, actions = transition.transition(State("c", agreement, 0), Received("a", Restart(following)), lambda _: "")
    assert out.is_left_out
    assert not any(isinstance(action, Install) for action in actions)
