"""Running rings under kills, freezes, returns and cuts: whatever happens in whatever order, the claims hold."""

import time

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kintsugi.runtime.ring.messages import Agreement
from kintsugi.runtime.ring.options import RingOptions
from tests.runtime.ring.rings import Ring

SIZE = 5
HASTE = RingOptions(heartbeat_seconds=0.05, heartbeat_timeout_seconds=0.4, start_timeout_seconds=30.0, retry_seconds=0.1)
NAMES = st.sampled_from("abcde")


class RunningRing(RuleBasedStateMachine):
    """Five members, at most three faults."""

    def __init__(self) -> None:
        super().__init__()
        self.ring = Ring(SIZE, options=HASTE)
        self.ring.__enter__()
        self.killed: set[str] = set()
        self.frozen: set[str] = set()
        self.faults = 0
        self.is_cut = False
        self.committed: dict[tuple[str, int], int] = {}
        """The last step that each member committed in each generation."""

    @rule(name=NAMES)
    def commit(self, name: str) -> None:
        node = self.ring.nodes[name]
        agreement = node.agreement
        step = self.committed.get((name, agreement.generation), max(agreement.committed_step, 0)) + 1
        if name not in self.killed and node.commit(agreement.generation, step):
            self.committed[name, agreement.generation] = step

    @precondition(lambda self: self.faults < 3)
    @rule(name=NAMES)
    def kill(self, name: str) -> None:
        if name not in self.killed:
            self.faults += 1
            self.killed.add(name)
            self.frozen.discard(name)
            self.ring.kill(name)

    @precondition(lambda self: self.faults < 3)
    @rule(name=NAMES)
    def freeze(self, name: str) -> None:
        if name not in self.killed | self.frozen:
            self.faults += 1
            self.frozen.add(name)
            self.ring.freeze(name)

    @rule(name=NAMES)
    def thaw(self, name: str) -> None:
        self.frozen.discard(name)
        self.ring.thaw(name)

    @precondition(lambda self: self.faults < 3)
    @rule(names=st.sets(NAMES, min_size=2, max_size=2))
    def cut(self, names: set[str]) -> None:
        self.faults += 1
        self.is_cut = True
        self.ring.cut(*sorted(names))

    @rule(seconds=st.sampled_from((0.0, 0.01, 0.5)))
    def let_time_pass(self, seconds: float) -> None:
        time.sleep(seconds)

    @invariant()
    def one_membership_per_generation(self) -> None:
        by_generation: dict[int, Agreement] = {}
        for heard in self.ring.heard.values():
            for agreement in (*heard.agreements, *heard.left_out):
                assert by_generation.setdefault(agreement.generation, agreement) == agreement

    @invariant()
    def nobody_that_goes_on_loses_a_step(self) -> None:
        for name, heard in self.ring.heard.items():
            for agreement in heard.agreements:
                assert self.committed.get((name, agreement.generation - 1), 0) <= agreement.committed_step

    def teardown(self) -> None:
        try:
            for name in sorted(self.frozen):
                self.ring.thaw(name)
            if not self.is_cut:
                self.ring.wait(self.is_settled)
            self.one_membership_per_generation()
        finally:
            self.ring.__exit__()

    def is_settled(self) -> bool:
        """Whether all who live are members of one generation together, or know that it goes on without them."""
        states = [node._state for name, node in self.ring.nodes.items() if name not in self.killed]
        going_on = [state for state in states if not state.is_left_out]
        is_done = all(not state.is_stopped and not state.lost for state in going_on)
        return is_done and all(set(state.agreement.members) == {other.member for other in going_on} for state in going_on)


TestRunningRing = RunningRing.TestCase
TestRunningRing.settings = settings(
    max_examples=6, stateful_step_count=8, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
