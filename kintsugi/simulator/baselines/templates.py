"""Oobleck's pipeline templates, and how micro-batches are spread over pipelines of different lengths."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise

from estimator.costs import Costs
from estimator.split import scheduled_times
from kintsugi.core.cluster import Cluster
from kintsugi.core.errors import InfeasibleError
from kintsugi.core.job import JobSettings, Snapshot
from kintsugi.core.plan import Policy
from kintsugi.core.profile import Profile
from kintsugi.simulator.transitions import grid


@dataclass(frozen=True)
class Template:
    """The split of the layers for one length."""

    cuts: tuple[int, ...]


@lru_cache(1024)
def template(profile: Profile, settings: JobSettings, length: int) -> Template | None:
    """The split over `length` workers with the shortest pipeline; None where none fits memory."""
    cluster = Cluster.uniform(length)
    snapshot = Snapshot(profile=profile, cluster=cluster, settings=settings, plan=None, alive=tuple(cluster.by_id), generation=0)
    try:
        plan = grid(snapshot, snapshot.alive, 1, length, keeps_state=False, policy=Policy.FAULT_FREE).plan
    except InfeasibleError:
        return None
    return Template(tuple(accumulate((s.layer_stop - s.layer_start for s in plan.pipelines[0].stages), initial=0)))


def pipeline_seconds(cuts: Sequence[int], count: int, settings: JobSettings, costs: Costs, worker: str) -> float:
    """Equation 11 for a pipeline of workers like `worker`, each alone on its host, in seconds."""
    stages = [costs.stage(worker, a, b) for a, b in pairwise(cuts)]
    link = costs.profile.network.inter_host
    delays = [link.transfer_seconds(costs.profile.layers[cut - 1].output_bytes) for cut in cuts[1:-1]]
    return scheduled_times(settings.schedule, stages, delays, count).pipeline_seconds


def distributed(cuts: Sequence[Sequence[int]], settings: JobSettings, costs: Costs, worker: str) -> list[int]:
    """Micro-batches of each pipeline: one by one to the pipeline that is through first with one more; everybody has one.

    Raises:
        InfeasibleError: there are more pipelines than micro-batches.
    """
    if len(cuts) > settings.num_microbatches:
        raise InfeasibleError("more pipelines than micro-batches", field="num_microbatches", value=settings.num_microbatches)
    known: dict[tuple[tuple[int, ...], int], float] = {}

    def seconds(own: Sequence[int], count: int) -> float:
        key = tuple(own), count
        if key not in known:
            known[key] = pipeline_seconds(own, count, settings, costs, worker)
        return known[key]

    shares = _proportional(cuts, settings.num_microbatches)
    while True:
        times = [seconds(own, share) for own, share in zip(cuts, shares, strict=True)]
        slowest = max(range(len(cuts)), key=times.__getitem__)
        later = [seconds(own, share + 1) for own, share in zip(cuts, shares, strict=True)]
        fastest = min(range(len(cuts)), key=later.__getitem__)
        if shares[slowest] == 1 or fastest == slowest or later[fastest] >= times[slowest]:
            return shares
        shares[slowest] -= 1
        shares[fastest] += 1


def _proportional(cuts: Sequence[Sequence[int]], total: int) -> list[int]:
    """Micro-batches by the number of stages, at least one each; the remainder goes to the first pipelines."""
    stages = [len(own) - 1 for own in cuts]
    shares = [max(1, total * count // sum(stages)) for count in stages]
    while sum(shares) > total:
        shares[shares.index(max(shares))] -= 1
    for index in range(total - sum(shares)):
        shares[index % len(shares)] += 1
    return shares
