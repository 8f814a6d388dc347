"""Random jobs on few workers of little memory, some smaller or slower than others, and every plan there is for them."""

import itertools
import random
from collections import Counter
from functools import cache

from estimator.layers import LayerSums
from estimator.memory import running_bytes
from estimator.moments import worker_moments
from estimator.split import scheduled_times
from kintsugi.core.cluster import Cluster, Worker
from kintsugi.core.plan import Schedule
from kintsugi.core.profile import LayerProfile, LinkCost, OptimizerSharding, Profile
from tests.builders import layer, profile_of
from tests.planner.oracle import splits

LINK = LinkCost(alpha_seconds=0.0, beta_seconds_per_byte=1e-10)
NOT_REDUCED = {"gradient_bytes": 0, "optimizer_seconds": 0.0}

Ranges = tuple[tuple[int, int], ...]
"""Layers of the stages of a worker."""

Kinds = tuple[tuple[float, int], ...]
"""Speed and usable memory of the workers of a pipeline."""


def tight_job(chance: random.Random, most_workers: int = 5, most_layers: int = 8) -> tuple[Profile, Cluster, int]:
    """A random profile, its workers, and micro-batches; nothing is reduced, so that pipelines alone make up a step."""
    num_workers, num_layers = chance.randint(2, most_workers), chance.randint(2, most_layers)
    layers = tight_layers(chance, num_layers)
    sharding = chance.choice([OptimizerSharding.NONE] * 4 + [OptimizerSharding.ZERO1])
    profile, sums = profile_of(layers, inter_host=LINK, optimizer_sharding=sharding), LayerSums(profile_of(layers))
    whole = sums.static_bytes(0, num_layers, 1) + sums.activation_bytes(0, num_layers)
    share = chance.choice([0.3, 0.5, 0.7, 1.0, 1.3])
    sizes = [int(whole * share * chance.choice([0.5, 0.7, 1.0, 1.0, 1.5])) for _ in range(chance.randint(1, 3))]
    speeds = [chance.choice([1.0, 1.0, 0.8, 0.5]) for _ in range(chance.randint(1, 2))]
    workers = (
        Worker(id=f"w{n:02d}", host=f"h{n:02d}", memory_bytes=chance.choice(sizes), speed_ratio=chance.choice(speeds))
        for n in range(num_workers)
    )
    return profile, Cluster(name="tight", workers=tuple(workers)), chance.randint(1, 6)


def tight_layers(chance: random.Random, num_layers: int) -> list[LayerProfile]:
    """Layers that are equal, or differ in time and memory."""
    sent, is_even = {"output_bytes": chance.choice([0, 10_000_000])}, chance.random() < 0.4
    return [layer(f"l{n}", **NOT_REDUCED, **sent, **({} if is_even else _uneven(chance))) for n in range(num_layers)]


def _uneven(chance: random.Random) -> dict[str, float]:
    seconds = chance.uniform(0.002, 0.02)
    return {
        "forward_seconds": seconds,
        "backward_input_seconds": seconds * chance.choice([0.5, 1, 1]),
        "backward_weight_seconds": seconds * chance.choice([0.5, 1, 1]),
        "optimizer_bytes": chance.choice([100, 400, 400, 1600]) * 10**6,
        "activation_bytes": chance.choice([10, 50, 50, 300]) * 10**6,
    }


def best_tight_seconds(profile: Profile, cluster: Cluster, num_microbatches: int, schedule: Schedule) -> float:
    """Least step over all pipelines, orders of their workers, shares and splits; infinite where nothing fits memory."""
    counts = Counter((worker.speed_ratio, worker.usable_bytes(profile.device)) for worker in cluster.workers)
    kinds = sorted(counts)
    lane = cache(lambda group, count, dp: _lane_seconds(profile, schedule, group, count, dp))

    @cache
    def least(left: tuple[int, ...], count: int, lanes: int, dp: int) -> float:
        if not lanes:
            return float("inf") if count else 0.0
        result = float("inf")
        for taken in itertools.product(*(range(own + 1) for own in left)):
            group = tuple(kind for kind, times in zip(kinds, taken, strict=True) for _ in range(times))
            rest = tuple(own - times for own, times in zip(left, taken, strict=True))
            for share in range(1, count - lanes + 2) if 0 < len(group) <= profile.num_layers else ():
                own_seconds = lane(group, share, dp)
                if own_seconds < result:
                    result = min(result, max(own_seconds, least(rest, count - share, lanes - 1, dp)))
        return result

    everybody = tuple(counts[kind] for kind in kinds)
    return min(least(everybody, num_microbatches, dp, dp) for dp in range(1, min(len(cluster.workers), num_microbatches) + 1))


def _lane_seconds(profile: Profile, schedule: Schedule, group: Kinds, num_microbatches: int, dp: int) -> float:
    """Of one of `dp` pipelines of these workers, in their best order."""
    sums, size = LayerSums(profile), len(group)
    rounds = range(2, profile.num_layers // size + 1) if schedule.is_interleaved and size > 1 else (1,)
    own = Schedule.ONE_F_ONE_B if schedule.is_interleaved and size == 1 else schedule

    @cache
    def peak_bytes(place: int, ranges: Ranges) -> int:
        moments = worker_moments(own, place, size, num_microbatches, len(ranges))
        return sums.held_bytes(ranges, dp) + running_bytes(sums, ranges, moments)

    result = float("inf")
    for order in set(itertools.permutations(group)):
        for cuts in itertools.chain.from_iterable(splits(profile.num_layers, size * times) for times in rounds):
            ranges = tuple(itertools.pairwise(cuts))
            if any(peak_bytes(place, ranges[place::size]) > kind[1] for place, kind in enumerate(order)):
                continue
            stages = [sums.times(*range_, order[place % size][0]) for place, range_ in enumerate(ranges)]
            delays = [LINK.transfer_seconds(profile.layers[cut - 1].output_bytes) for cut in cuts[1:-1]]
            times = scheduled_times(own, stages, delays, num_microbatches, num_workers=size)
            result = min(result, times.pipeline_seconds)
    return result
