"""Both ends of every channel agree on its order, and strict order on every channel never makes workers wait for ever."""

import itertools
from collections import deque
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.message_order import arrivals, departures
from estimator.program import RECEIVES, SENDS, ActionKind, Message, Program, compile_program
from estimator.schedule import ORDERS
from kintsugi.core.cluster import Cluster
from kintsugi.core.errors import InvalidInputError
from kintsugi.core.plan import Pipeline, Plan, Policy, Route, Schedule, Stage
from tests.builders import grid_plan
from tests.estimator.test_program import NUM_LAYERS, PROFILE, TIGHT, all_cluster, mended_plans, with_rounds


@dataclass
class Channel:
    """One direction of a pair: sends and receives are carried out in the order in which they were begun, one with the other."""

    order: tuple[Message, ...]
    """In which the receiver begins its receives."""
    sent: deque[Message] = field(default_factory=deque)
    num_begun: int = 0
    delivered: list[Message] = field(default_factory=list)

    def advance(self) -> None:
        """Rendezvous: the first message that is under way holds up all later ones until its receive was begun."""
        while self.sent and len(self.delivered) < self.num_begun:
            message = self.sent.popleft()
            assert message == self.order[len(self.delivered)], "what was sent is not what was to be received"
            self.delivered.append(message)


class Oracle:
    """Carries out all workers' lists over channels; a worker waits for what it wants, and at the end for its sends."""

    def __init__(self, program: Program, ahead: int) -> None:
        self.program = program
        self.ahead = ahead
        self.place = dict.fromkeys(program.actions, 0)
        self.channels = {
            (peer, worker): Channel(order)
            for worker, actions in program.actions.items()
            for peer, order in arrivals(actions, program.places[worker]).items()
        }

    def run(self, turns: list[int]) -> set[str]:
        """The workers that wait for ever; `turns` says who goes next where several can."""
        stuck: set[str] = set()
        choices = deque(turns)
        while len(stuck) < len(self.place):
            ready = [worker for worker in self.place if worker not in stuck]
            worker = ready[choices.popleft() % len(ready) if choices else 0]
            before = self.place[worker]
            self.place[worker] = self._advanced(worker, before)
            stuck = stuck | {worker} if self.place[worker] == before else set()
        return {worker for worker, actions in self.program.actions.items() if self.place[worker] < len(actions)}

    def _advanced(self, worker: str, place: int) -> int:
        """One action further, where nothing holds it up."""
        actions = self.program.actions[worker]
        if place == len(actions):
            return place
        action = actions[place]
        if action.kind in SENDS:
            channel = self.channels[worker, action.peer]
            channel.sent.append(action.message)
            channel.advance()
        elif action.kind in RECEIVES:
            channel = self.channels[action.peer, worker]
            wanted = channel.order.index(action.message)
            channel.num_begun = max(channel.num_begun, min(wanted + 1 + self.ahead, len(channel.order)))
            channel.advance()
            return place + (wanted < len(channel.delivered))
        elif action.kind is ActionKind.APPLY and any(channel.sent for pair, channel in self.channels.items() if pair[0] == worker):
            return place
        return place + 1


@given(mended_plans(), st.booleans())
@settings(max_examples=150, deadline=None)
def test_each_channel_has_one_order_at_both_its_ends(plan, is_tight):
    cluster = all_cluster(plan)
    program = compile_program(plan, TIGHT if is_tight else PROFILE, cluster)
    sent = {(worker, peer): order for worker, actions in program.actions.items() for peer, order in departures(actions).items()}
    received = {
        (peer, worker): order
        for worker, actions in program.actions.items()
        for peer, order in arrivals(actions, program.places[worker]).items()
    }
    assert sent == received


@given(mended_plans(), st.booleans(), st.sampled_from([0, 1, 2, 1000]), st.lists(st.integers(0, 99), max_size=100))
@settings(max_examples=150, deadline=None)
def test_nobody_waits_for_ever_where_channels_keep_their_order(plan, is_tight, ahead, turns):
    program = compile_program(plan, TIGHT if is_tight else PROFILE, all_cluster(plan))
    oracle = Oracle(program, ahead)
    assert oracle.run(turns) == set()
    assert all(channel.delivered == list(channel.order) for channel in oracle.channels.values())


@pytest.mark.parametrize("schedule", list(ORDERS))
@pytest.mark.parametrize("ahead", [0, 1000])
def test_whole_grids_under_every_schedule(schedule, ahead):
    stages = 3 if schedule is Schedule.INTERLEAVED else 1
    plan = with_rounds(grid_plan(NUM_LAYERS, [2, 2, 2], [4, 4, 4], schedule=schedule, stages_per_worker=stages))
    oracle = Oracle(compile_program(plan, PROFILE, Cluster.uniform(6)), ahead)
    assert oracle.run([]) == set()


def interleaved() -> Program:
    plan = with_rounds(grid_plan(NUM_LAYERS, [2], [4], schedule=Schedule.INTERLEAVED, stages_per_worker=3))
    return compile_program(plan, PROFILE, Cluster.uniform(2))


def rerouted() -> Plan:
    """Two workers took turns with four stages; the first is lost, and one that holds the whole model stands in for it."""
    plan = grid_plan(NUM_LAYERS, [2, 1], [3, 1], schedule=Schedule.INTERLEAVED, stages_per_worker=2)
    cuts = [0, 1, 2, 3, NUM_LAYERS]
    stages = tuple(
        Stage(layer_start=start, layer_stop=stop, worker="w01" if index % 2 else None)
        for index, (start, stop) in enumerate(itertools.pairwise(cuts))
    )
    whole = Stage(layer_start=0, layer_stop=NUM_LAYERS, worker="w02")
    routes = tuple(Route(microbatch=m, pipeline=0, stage=stage, worker="w02") for m in range(3) for stage in (0, 2))
    pipelines = Pipeline(num_microbatches=3, stages=stages), Pipeline(num_microbatches=1, stages=(whole,))
    return with_rounds(replace(plan, policy=Policy.DATA_REROUTING, pipelines=pipelines, routes=routes, rounds=()))


def test_messages_are_not_always_wanted_in_the_order_in_which_they_are_sent():
    """So the receiver has to be told: its own list is not enough."""
    plan = rerouted()
    program = compile_program(plan, PROFILE, all_cluster(plan))
    wanted = {
        worker: [action.message for action in actions if action.kind in RECEIVES] for worker, actions in program.actions.items()
    }
    assert any(
        list(order) != [message for message in wanted[worker] if message in order]
        for worker, actions in program.actions.items()
        for order in arrivals(actions, program.places[worker]).values()
    )


def test_the_oracle_sees_who_waits_for_ever():
    """Two workers that both want the other's message before they send theirs; and one whose message is never sent."""
    program = compile_program(grid_plan(NUM_LAYERS, [2], [2]), PROFILE, Cluster.uniform(2))
    first, second = (list(program.actions[worker]) for worker in ("w00", "w01"))
    first.sort(key=lambda action: action.kind not in RECEIVES)
    assert Oracle(Program({"w00": tuple(first), "w01": tuple(second)}, ()), 1000).run([]) == {"w00", "w01"}


def test_the_oracle_sees_messages_that_meet_the_wrong_receive():
    program = compile_program(grid_plan(NUM_LAYERS, [2], [2]), PROFILE, Cluster.uniform(2))
    oracle = Oracle(program, 1000)
    oracle.channels["w00", "w01"].order = oracle.channels["w00", "w01"].order[::-1]
    with pytest.raises(AssertionError, match="not what was to be received"):
        oracle.run([])


def test_places_that_are_not_a_peers_are_refused():
    program = interleaved()
    actions, places = program.actions["w01"], program.places["w01"]
    with pytest.raises(InvalidInputError, match=f"not one for each of {len(places)} messages"):
        arrivals(actions, places[1:])
    with pytest.raises(InvalidInputError, match="of the messages with w00 are not 0 to"):
        arrivals(actions, (places[1], *places[1:]))


def test_the_checksum_covers_the_places():
    """Sends of one worker that change places change the digest of the one that receives them."""
    program = interleaved()
    actions = list(program.actions["w00"])
    places = [place for place, action in enumerate(actions) if action.kind in SENDS]
    one, other = places[0], next(place for place in places if actions[place].message != actions[places[0]].message)
    actions[one], actions[other] = actions[other], actions[one]
    changed = replace(program, actions={**program.actions, "w00": tuple(actions)})
    assert changed.texts["w01"] == program.texts["w01"]
    assert changed.digests["w01"] != program.digests["w01"]
    assert changed.checksum != program.checksum
