"""Splits of layers over interleaved pipelines of little memory, against all splits there are."""

import itertools
import random

import numpy as np

from estimator.layers import LayerSums
from kintsugi.core.plan import Schedule
from planner.pipelines.chunks import ChunkSplitter
from planner.pipelines.kinds import WorkerKind
from tests.builders import profile_of
from tests.planner.tight import LINK, tight_layers


def crew(chance, num_workers, whole_bytes):
    """Workers that differ in speed and memory, hardly enough for all layers together."""
    share = chance.choice([1.2, 1.5, 1.8, 2.2, 3.0]) / num_workers
    return tuple(
        WorkerKind(chance.choice([1.0, 1.0, 0.8, 0.5]), int(whole_bytes * share * chance.choice([0.5, 0.7, 1.0, 1.0, 1.5])))
        for _ in range(num_workers)
    )


def test_splits_fit_nearly_always_where_any_does_and_are_close_to_the_best():
    chance, ratios, num_missed = random.Random(4), [], 0
    for _ in range(250):
        num_layers, num_workers, virtual = chance.randint(7, 11), chance.randint(2, 4), chance.randint(2, 3)
        if num_workers * virtual > num_layers:
            continue
        profile = profile_of(tight_layers(chance, num_layers), inter_host=LINK)
        sums, schedule = LayerSums(profile), chance.choice([Schedule.INTERLEAVED, Schedule.INTERLEAVED_ZB])
        splitter, tail, count = ChunkSplitter(sums, schedule, LINK, 1), np.zeros(num_layers + 1), chance.randint(1, 8)
        kinds = crew(chance, num_workers, sums.static_bytes(0, num_layers, 1) + sums.activation_bytes(0, num_layers))
        inner = itertools.combinations(range(1, num_layers), num_workers * virtual - 1)
        every = np.array([(0, *cuts, num_layers) for cuts in inner])
        fitting = every[splitter.lacking(every, kinds, count) == 0]
        if not len(fitting):
            continue
        found = splitter.best(kinds, virtual, count, tail)
        if found.lacking_bytes:
            num_missed += 1
        else:
            ratios.append(found.seconds / splitter.seconds(fitting, kinds, count, tail).min())
    assert len(ratios) >= 100
    assert num_missed <= 1
    assert min(ratios) > 1 - 1e-9
    assert sum(ratio > 1.01 for ratio in ratios) <= len(ratios) // 20
