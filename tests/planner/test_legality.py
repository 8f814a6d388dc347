"""The check of a decision finds nothing wrong with real ones, and each wrong thing in spoilt ones."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kintsugi.core.cluster import Cluster
from kintsugi.core.decision import Migration, Search, StateKind
from kintsugi.core.errors import InfeasibleError
from kintsugi.core.job import Ranges
from kintsugi.core.plan import IdleWorker, Policy
from planner.contingency import accepted
from planner.legality import violations
from planner.replan import replan
from tests.builders import snapshot_of, transformer_profile, uniform_profile

PROFILE = uniform_profile(8)
GRID = Ranges(min_dp=2, max_dp=2, min_pp=4, max_pp=4)


@settings(deadline=None, max_examples=40)
@given(
    st.integers(3, 9),
    st.booleans(),
    st.sampled_from([None, Policy.DATA_REROUTING, Policy.DYNAMIC_PARALLELISM]),
    st.data(),
)
def test_what_the_planner_decides_is_legal(num_workers, transformer, policy, data):
    profile, cluster = transformer_profile(5) if transformer else uniform_profile(6), Cluster.uniform(num_workers)
    lost = data.draw(st.sets(st.integers(0, num_workers - 1), min_size=1, max_size=2))
    try:
        first = snapshot_of(profile, cluster, 2 * num_workers, policy=policy)
        decision = replan(first)
        assert violations(first, decision) == ()
        alive = tuple(worker for n, worker in enumerate(first.alive) if n not in lost)
        second = replace(accepted(first, decision), alive=alive)
        assert violations(second, replan(second)) == ()
    except InfeasibleError:
        return


def broken():
    """A snapshot after a loss, and its decision by dynamic parallelism."""
    first = snapshot_of(PROFILE, Cluster.uniform(9), 16, ranges=GRID)
    base = accepted(first, replan(first))
    settings = replace(base.settings, ranges=Ranges(), policy=Policy.DYNAMIC_PARALLELISM)
    snapshot = replace(base, alive=base.alive[1:8], settings=settings)
    return snapshot, replan(snapshot)


def with_plan(decision, **changes):
    return replace(decision, plan=replace(decision.plan, **changes))


SPOILT = {
    "not alive: w03": lambda s, d: (replace(s, alive=tuple(w for w in s.alive if w != "w03")), d),
    "without saying so: w08": lambda s, d: (replace(s, alive=(*s.alive, "w08")), d),
    "gives no reason": lambda s, d: (
        replace(s, alive=(*s.alive, "w08")),
        with_plan(d, idle_workers=(IdleWorker(worker="w08", reason=""),)),
    ),
    "micro-batches of 17": lambda s, d: (replace(s, settings=replace(s.settings, num_microbatches=17)), d),
    "generation 1, not 9": lambda s, d: (replace(s, generation=9), d),
    "pipelines, beyond": lambda s, d: (replace(s, settings=replace(s.settings, ranges=Ranges(min_dp=7))), d),
    "workers, beyond": lambda s, d: (replace(s, settings=replace(s.settings, ranges=Ranges(min_pp=7))), d),
    "does not reduce layer 0": lambda s, d: (s, with_plan(d, rounds=())),
    "bytes of memory on": lambda s, d: (replace(s, profile=uniform_profile(8, memory_bytes=1_000_000_000)), d),
    "priced at iteration_seconds": lambda s, d: (s, replace(d, estimate=replace(d.estimate, iteration_seconds=0.1))),
    "claims a goodput": lambda s, d: (s, replace(d, estimate=replace(d.estimate, goodput_samples_per_second=1e6))),
    "lower bound": lambda s, d: (s, replace(d, search=Search(lower_bound_seconds=1e3, gap_ratio=0.0, elapsed_seconds=0.0))),
    "without their state": lambda s, d: (s, replace(d, migration=Migration())),
    "which does not hold it": lambda s, d: (
        s,
        replace(
            d,
            migration=replace(d.migration, transfers=tuple(replace(t, source="w00") for t in d.migration.transfers)),
        ),
    ),
}


@pytest.mark.parametrize("message", SPOILT)
def test_what_is_wrong_is_found(message):
    snapshot, decision = broken()
    assert violations(snapshot, decision) == ()
    assert decision.migration.transfers
    assert any(message in found for found in violations(*SPOILT[message](snapshot, decision)))


@pytest.mark.parametrize("kind", [StateKind.PARAMETER, StateKind.OPTIMIZER])
def test_state_of_which_a_byte_is_missing_is_found(kind):
    snapshot, decision = broken()
    last = next(transfer for transfer in reversed(decision.migration.transfers) if transfer.kind is kind)
    transfers = tuple(replace(t, num_bytes=t.num_bytes - (t is last)) for t in decision.migration.transfers)
    (found,) = violations(snapshot, replace(decision, migration=replace(decision.migration, transfers=transfers)))
    assert found == f"lets {last.target} compute layers [{last.layer}] without their state"
