"""Peak memory of a stage: the paper's formula (equation 14) and the one that planning uses."""

from collections.abc import Sequence
from operator import mul
from typing import NamedTuple

from estimator.arrays import Ints
from estimator.layers import INPUT_PART, PASS, WEIGHT_PART, LayerSums
from estimator.schedule import num_in_flight
from kintsugi.core.plan import Plan, Stage


def peak_bytes(
    num_layers: int,
    parameter_bytes: int,
    optimizer_bytes: int,
    gradient_bytes: int,
    activation_bytes: int,
    *,
    stage: int,
    num_stages: int,
    num_microbatches: int,
) -> int:
    """Equation 14 for equal layers: static memory plus the activations of the micro-batches in flight, in bytes.

    The paper counts N_pp - i micro-batches in flight; no more than N_m ever are, so it is min(N_pp - i, N_m) here.

    Args:
        num_layers: N_l of the stage.
        parameter_bytes: m_p of one layer.
        optimizer_bytes: m_o of one layer.
        gradient_bytes: m_g of one layer.
        activation_bytes: m_a of one layer and one micro-batch.
        stage: i, from 0.
        num_stages: N_pp.
        num_microbatches: N_m of the pipeline.
    """
    static = num_layers * (parameter_bytes + optimizer_bytes + gradient_bytes)
    return static + num_in_flight(stage, num_stages, num_microbatches) * num_layers * activation_bytes


def stage_peak_bytes(sums: LayerSums, start: int, stop: int, *, moments: Ints, num_replicas: int) -> int:
    """Peak memory of layers start..stop-1 as a worker's only stage, in bytes.

    Equation 14 with the layers' own sums, what is kept for weight parts that are put off, and what passes and updates take.

    Args:
        sums: of the profile's layers.
        start: first layer.
        stop: one past the last layer.
        moments: when the stage holds most (`estimator.moments.stage_moments`).
        num_replicas: holders of each layer, which share the optimizer state under zero1.
    """
    return sums.static_bytes(start, stop, num_replicas) + running_bytes(sums, [(start, stop)], moments)


def running_bytes(sums: LayerSums, ranges: Sequence[tuple[int, int]], moments: Ints) -> int:
    """The most that a worker's passes and updates take on top of what it always holds, in bytes.

    A pass takes its widest layer's temporary memory (embedding, head, workspaces) beyond what is kept; an update comes when
    nothing is. Exact where all is measured by layer and a worker has one stage; of several that with the widest pass counts.

    Args:
        sums: of the profile's layers.
        ranges: layers of the worker's stages, half open.
        moments: when it holds most (`estimator.moments.worker_moments`).
    """
    update = max(sums.update_bytes(*stage) for stage in ranges)
    sizes = [amount(*stage) for amount in (sums.activation_bytes, sums.deferred_bytes) for stage in ranges]
    taken = {kind: _widest_bytes(sums, ranges, kind) for kind in set(moments[:, 0].tolist())}
    rows: list[list[int]] = moments.tolist()
    passing: list[int] = [taken[kind] + sum(map(mul, counts, sizes)) for kind, *counts in rows]
    return max(update, *passing)


def worker_peak_bytes(plan: Plan, worker: str, sums: LayerSums, moments: Ints) -> int:
    """Peak memory of a worker in bytes; `moments` as in `running_bytes`."""
    return worker_static_bytes(plan, worker, sums) + running_bytes(sums, _ranges(plan, worker), moments)


class Allowance(NamedTuple):
    """What a worker of rerouted pipelines takes beside activations, in bytes."""

    static_bytes: int
    """Parameters, gradients and optimizer state of all its stages."""
    pass_bytes: int
    """What a forward or whole backward pass takes at most."""
    input_excess_bytes: int
    """How much more an input part takes than those; below 0 if less."""
    weight_excess_bytes: int
    """The same of a weight part."""
    update_bytes: int
    """What an update takes, when nothing else is held."""

    def activation_budget(self, usable_bytes: int) -> int:
        """What such a worker has for activations on devices of which it may use so much."""
        return usable_bytes - self.static_bytes - self.pass_bytes

    def peak_bytes(self, held_bytes: int) -> int:
        """Peak memory where it takes at most so much of its `activation_budget` at once."""
        return self.static_bytes + max(self.update_bytes, held_bytes + self.pass_bytes)


def allowance(plan: Plan, worker: str, sums: LayerSums) -> Allowance:
    """What a worker takes beside activations: the same for all that hold the same layers in a plan."""
    ranges = _ranges(plan, worker)
    whole, *parts = (_widest_bytes(sums, ranges, kind) for kind in (PASS, INPUT_PART, WEIGHT_PART))
    update = max(sums.update_bytes(*stage) for stage in ranges)
    return Allowance(worker_static_bytes(plan, worker, sums), whole, parts[0] - whole, parts[1] - whole, update)


def worker_static_bytes(plan: Plan, worker: str, sums: LayerSums) -> int:
    """Parameters, gradients and optimizer state of all stages that a worker holds, in bytes."""
    stages = plan.stages_of[worker]
    if len(stages) == 1:
        return sums.static_bytes(stages[0].layer_start, stages[0].layer_stop, fewest_replicas(plan, stages[0]))
    replicas = min(fewest_replicas(plan, stage) for stage in stages)
    return sums.held_bytes(_ranges(plan, worker), replicas)


def _widest_bytes(sums: LayerSums, ranges: Sequence[tuple[int, int]], kind: int) -> int:
    """What the pass of a kind takes that takes most of any of a worker's stages."""
    return max(sums.temporary_bytes(*stage, kind) for stage in ranges)


def _ranges(plan: Plan, worker: str) -> list[tuple[int, int]]:
    return [(stage.layer_start, stage.layer_stop) for stage in plan.stages_of[worker]]


def fewest_replicas(plan: Plan, stage: Stage) -> int:
    """Holders of the least replicated layer of a stage: what its optimizer state is divided by under zero1."""
    return plan.dp if not plan.dead_slots else min(plan.num_holders[stage.layer_start : stage.layer_stop])
