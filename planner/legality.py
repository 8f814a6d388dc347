"""Whether a decision may be carried out: everything that must hold of it, checked without the code that made it."""

from collections import Counter
from collections.abc import Iterator

from estimator.costs import Costs
from estimator.estimate import estimate
from estimator.goodput import goodput_samples_per_second
from estimator.program import compile_program
from estimator.replay import replay
from kintsugi.core.decision import Decision
from kintsugi.core.job import Snapshot
from kintsugi.core.plan import Plan, Policy
from kintsugi.core.profile import OptimizerSharding, Profile

TOLERANCE = 1e-6
"""Relative difference that two ways of reckoning the same time may have."""

ARRANGED = frozenset({Policy.FAULT_FREE, Policy.DYNAMIC_PARALLELISM, Policy.CHECKPOINT_RESTART})
"""Policies that choose the degrees themselves, so that the job's ranges hold for them."""


def violations(snapshot: Snapshot, decision: Decision) -> tuple[str, ...]:
    """What is illegal about the decision for a snapshot, in words; nothing where it may be carried out.

    Contiguous stages, distinct workers, routes around every dead slot and rounds without a worker in two reductions are
    what a `Plan` cannot be built without; checked here is what depends on the job.
    """
    rules = (_memory, _price, _migration)
    return misplacements(snapshot, decision) + tuple(message for rule in rules for message in rule(snapshot, decision))


def misplacements(snapshot: Snapshot, decision: Decision) -> tuple[str, ...]:
    """Those of the `violations` that need no replay: who does what."""
    rules = (_workers, _job, _ranges, _reductions)
    return tuple(message for rule in rules for message in rule(snapshot, decision))


def _workers(snapshot: Snapshot, decision: Decision) -> Iterator[str]:
    plan, alive = decision.plan, set(snapshot.alive)
    known = {*plan.workers, *(idle.worker for idle in plan.idle_workers)}
    if absent := sorted(known - alive):
        yield f"claims workers that are not alive: {', '.join(absent)}"
    if forgotten := sorted(alive - known):
        yield f"leaves workers idle without saying so: {', '.join(forgotten)}"
    if silent := sorted(idle.worker for idle in plan.idle_workers if not idle.reason):
        yield f"gives no reason for idle workers: {', '.join(silent)}"


def _job(snapshot: Snapshot, decision: Decision) -> Iterator[str]:
    plan, layers, microbatches = decision.plan, snapshot.profile.num_layers, snapshot.settings.num_microbatches
    if plan.num_layers != layers:
        yield f"holds {plan.num_layers} layers of {layers}"
    if plan.num_microbatches != microbatches:
        yield f"distributes {plan.num_microbatches} micro-batches of {microbatches}"
    if plan.generation != snapshot.generation:
        yield f"is of generation {plan.generation}, not {snapshot.generation}"


def _ranges(snapshot: Snapshot, decision: Decision) -> Iterator[str]:
    ranges, plan = snapshot.settings.ranges, decision.plan
    if decision.policy not in ARRANGED or (snapshot.plan is not None and plan.pipelines == snapshot.plan.pipelines):
        return
    if plan.dp < ranges.min_dp or (ranges.max_dp is not None and plan.dp > ranges.max_dp):
        yield f"has {plan.dp} pipelines, beyond the job's range"
    for pipeline in plan.pipelines:
        length = pipeline.num_workers
        if length < ranges.min_pp or (ranges.max_pp is not None and length > ranges.max_pp):
            yield f"has a pipeline of {length} workers, beyond the job's range"


def _reductions(snapshot: Snapshot, decision: Decision) -> Iterator[str]:
    """Tied layers are reduced over the holders of all of them, others over their own; nobody else takes part."""
    plan = decision.plan
    reduced = [(layer, reduction) for round_ in plan.rounds for reduction in round_ for layer in reduction.layers]
    times = Counter(layer for layer, _ in reduced)
    workers = {layer: set(reduction.workers) for layer, reduction in reduced}
    for group in snapshot.profile.tie_groups:
        holders = {worker for layer in group for worker in plan.holders[layer]}
        for layer in group:
            expected = holders if len(holders) > 1 else set()
            if workers.get(layer, set()) != expected or times[layer] != bool(expected):
                yield f"does not reduce layer {layer} once over its holders"


def _memory(snapshot: Snapshot, decision: Decision) -> Iterator[str]:
    costs = Costs(snapshot.profile, snapshot.cluster)
    for stage in estimate(decision.plan, snapshot.profile, snapshot.cluster).stages:
        lacking = stage.peak_memory_bytes - costs.usable_bytes(stage.worker)
        if lacking > 0:
            yield f"lacks {lacking} bytes of memory on {stage.worker}"


def _price(snapshot: Snapshot, decision: Decision) -> Iterator[str]:
    """The step is that of the program's replay, the goodput follows from it, and no bound is above it."""
    price, plan = decision.estimate, decision.plan
    program = compile_program(plan, snapshot.profile, snapshot.cluster)
    replayed = replay(program, Costs(snapshot.profile, snapshot.cluster))
    for name in ("iteration_seconds", "pipeline_seconds"):
        if _differ(getattr(replayed, name), getattr(price, name)):
            yield f"is priced at {name} {getattr(price, name):.9g}, but takes {getattr(replayed, name):.9g}"
    mtbf = snapshot.settings.mtbf_seconds if decision.mtbf_seconds is None else decision.mtbf_seconds
    throughput = plan.num_microbatches * snapshot.profile.microbatch_size / price.iteration_seconds
    goodput = goodput_samples_per_second(throughput, price.reconfiguration_seconds, mtbf)
    if decision.follow_up is None and _differ(goodput, price.goodput_samples_per_second):
        yield f"claims a goodput of {price.goodput_samples_per_second:.9g}, but reaches {goodput:.9g}"
    if decision.search.lower_bound_seconds > price.iteration_seconds * (1 + TOLERANCE):
        yield "has a shorter step than its lower bound allows"


def _migration(snapshot: Snapshot, decision: Decision) -> Iterator[str]:
    """Every layer that a worker newly holds comes to it whole, from survivors that hold it or from the checkpoint."""
    previous = snapshot.plan
    if previous is None or decision.policy is Policy.CHECKPOINT_RESTART:
        return
    survivors = set(snapshot.alive) - set(snapshot.stateless)
    sources = survivors | set(snapshot.draining)
    arriving = Counter[tuple[str, int]]()
    for read in decision.migration.from_checkpoint:
        arriving[read.target, read.layer] += read.num_bytes
    for transfer in decision.migration.transfers:
        arriving[transfer.target, transfer.layer] += transfer.num_bytes
        if transfer.layer not in _held(previous, transfer.source) or transfer.source not in sources:
            yield f"takes layer {transfer.layer} from {transfer.source}, which does not hold it"
    wanted = _least_bytes(snapshot.profile)
    for worker in decision.plan.workers:
        new = _held(decision.plan, worker) - (_held(previous, worker) if worker in survivors else set())
        if missing := sorted(layer for layer in new if arriving[worker, layer] < wanted[layer]):
            yield f"lets {worker} compute layers {missing} without their state"


def _held(plan: Plan, worker: str) -> set[int]:
    return set(plan.layers_of.get(worker, ()))


def _least_bytes(profile: Profile) -> tuple[int, ...]:
    """What comes at least to all devices of a worker that begins to hold a layer: shards of optimizer state may be others'."""
    is_whole = profile.optimizer_sharding is OptimizerSharding.NONE
    sizes = (layer.parameter_bytes + (layer.optimizer_bytes if is_whole else 0) for layer in profile.layers)
    return tuple(size * profile.tensor_parallel_degree for size in sizes)


def _differ(one: float, other: float) -> bool:
    return abs(one - other) > TOLERANCE * max(abs(one), abs(other))
