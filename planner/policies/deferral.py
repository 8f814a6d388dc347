"""Two steps: data rerouting at once, and a new arrangement once its state has moved beside the training.

The state of one step moves while the rerouted plan trains on; the gradients of the steps that pass meanwhile follow it, and
the receivers apply them too. When only the last step's are missing the job pauses for these and for the regrouping. That
rests on what every estimate assumes: messages overlap with computing.
"""

import math
from collections import Counter
from dataclasses import replace

from estimator.costs import Costs
from estimator.estimate import after_transition
from estimator.goodput import goodput_samples_per_second
from kintsugi.core.decision import FollowUp, Migration
from kintsugi.core.errors import InfeasibleError
from kintsugi.core.plan import Policy
from planner.policies.policy import Candidate


def defer(rerouted: Candidate, rearranged: Candidate, costs: Costs, mtbf_seconds: float) -> Candidate:
    """Rerouting now and `rearranged` later, priced over the time to the next failure.

    With k steps of t1 before a pause p, steps of t2 after it, and r until training goes on at first, the samples of a time m
    between failures are those of a plan of t2 a step whose transition takes r + p + k * (t1 - t2): equation 8 holds for it.

    Args:
        rerouted: what runs at once.
        rearranged: what would be moved to at once by dynamic parallelism.
        costs: of the job.
        mtbf_seconds: mean time between failures.

    Raises:
        InfeasibleError: there is nothing to gain, no memory to receive into, or no time before the next failure.
    """
    first, second = rerouted.estimate, rearranged.estimate
    if not rearranged.migration.transfers or second.iteration_seconds >= first.iteration_seconds:
        raise InfeasibleError("the new arrangement has no shorter step, or nothing has to move for it", field="policy")
    _require_room(rerouted, rearranged.migration, costs)
    catch_up = _catch_up_seconds(rearranged.migration, costs)
    steps = _steps(rearranged.migration.makespan_seconds, catch_up, first.iteration_seconds)
    pause = costs.profile.recovery.regroup_seconds + catch_up
    if first.reconfiguration_seconds + steps * first.iteration_seconds + pause >= mtbf_seconds:
        raise InfeasibleError(
            f"the state is expected to be there after {steps} steps, later than the next failure", field="mtbf_seconds"
        )
    following = rearranged.plan.amended(generation=rerouted.plan.generation + 1)
    follow_up = FollowUp(
        after_steps=steps,
        plan=following,
        estimate=after_transition(second, pause, mtbf_seconds),
        migration=rearranged.migration,
    )
    text = f"rerouting now, and after {steps} steps a new arrangement whose state has moved beside the training"
    plan = rerouted.plan.amended(policy=Policy.DEFERRED_PARALLELISM)
    candidate = replace(rerouted, policy=Policy.DEFERRED_PARALLELISM, plan=plan, reason=text, follow_up=follow_up)
    goodput = goodput_samples_per_second(second.throughput_samples_per_second, candidate.transition_seconds, mtbf_seconds)
    return replace(candidate, estimate=replace(first, goodput_samples_per_second=goodput))


def _require_room(rerouted: Candidate, migration: Migration, costs: Costs) -> None:
    """Receivers hold their old stage until the move.

    Raises:
        InfeasibleError: one cannot hold both.
    """
    peaks = {stage.worker: stage.peak_memory_bytes for stage in rerouted.estimate.stages}
    degree = costs.profile.tensor_parallel_degree
    incoming: Counter[str] = Counter()
    for transfer in migration.transfers:
        incoming[transfer.target] += transfer.num_bytes
    for worker, num_bytes in incoming.items():
        lacking = peaks.get(worker, 0) + num_bytes // degree - costs.usable_bytes(worker)
        if lacking > 0:
            raise InfeasibleError(
                f"worker {worker} lacks {lacking} bytes to receive its new layers beside the old ones",
                field="memory_bytes",
                value=costs.usable_bytes(worker),
            )


def _catch_up_seconds(migration: Migration, costs: Costs) -> float:
    """Time to send one step's gradients of the layers that move, in proportion to their bytes, in seconds."""
    state: Counter[tuple[str, int]] = Counter()
    for transfer in migration.transfers:
        state[transfer.target, transfer.layer] += transfer.num_bytes
    layers, degree = costs.profile.layers, costs.profile.tensor_parallel_degree
    share = max(layers[layer].gradient_bytes * degree / num_bytes for (_, layer), num_bytes in state.items())
    return migration.makespan_seconds * share


def _steps(makespan_seconds: float, catch_up_seconds: float, iteration_seconds: float) -> int:
    """Steps until the receivers lack the last one only: those of the first copy, then those that shrink the backlog.

    Raises:
        InfeasibleError: gradients come faster than they can be sent.
    """
    spare_seconds = iteration_seconds - catch_up_seconds
    if spare_seconds <= 0:
        raise InfeasibleError("the gradients of one step take longer to send than the step itself", field="policy")
    copying = math.ceil(makespan_seconds / iteration_seconds)
    return copying + math.ceil(copying * catch_up_seconds / spare_seconds)
