"""What rules an interleaved pipeline out for its memory, against all splits there are."""

import itertools
import random
from collections import Counter

import numpy as np
import pytest

from estimator.layers import LayerSums
from kintsugi.core.plan import Schedule
from kintsugi.core.profile import OptimizerSharding
from planner.pipelines.chunks import ChunkSplitter, least_held
from planner.pipelines.kinds import WorkerKind
from planner.pipelines.tails import no_reductions
from tests.builders import layer, profile_of
from tests.planner.tight import LINK, NOT_REDUCED, tight_layers

GB = 10**9


def drawn(chance, *, is_even):
    """A splitter, its kinds of workers, stages per worker, micro-batches, and all splits."""
    num_workers, virtual, num_layers = chance.randint(2, 4), chance.randint(2, 3), chance.randint(6, 12)
    virtual = min(virtual, num_layers // num_workers)
    layers = tight_layers(chance, num_layers)
    if is_even:
        layers = [layer(f"l{n}", **NOT_REDUCED) for n in range(num_layers)]
    sharding = chance.choice(list(OptimizerSharding))
    sums = LayerSums(profile_of(layers, inter_host=LINK, optimizer_sharding=sharding))
    whole = sums.static_bytes(0, num_layers, 1) + sums.activation_bytes(0, num_layers)
    kinds = tuple(WorkerKind(1.0, int(whole * chance.uniform(0.5, 3) / num_workers)) for _ in range(num_workers))
    splitter = ChunkSplitter(sums, chance.choice([Schedule.INTERLEAVED, Schedule.INTERLEAVED_ZB]), LINK, chance.randint(1, 3))
    inner = itertools.combinations(range(1, num_layers), num_workers * virtual - 1)
    splits = np.array([(0, *cuts, num_layers) for cuts in inner])
    return splitter, kinds, virtual, chance.randint(1, 9), splits


@pytest.mark.parametrize("is_even", [True, False], ids=["equal layers", "any layers"])
def test_no_pipeline_that_fits_is_ruled_out_and_of_equal_layers_nearly_all_others_are(is_even):
    chance, seen = random.Random(7), Counter()
    for _ in range(400):
        splitter, kinds, virtual, count, splits = drawn(chance, is_even=is_even)
        if len(splits) > 600:
            continue
        fits = not splitter.lacking(splits, kinds, count).all()
        seen[fits, splitter.may_fit(kinds, virtual, count)] += 1
    assert seen[True, True] >= 40
    assert not seen[True, False]
    assert seen[False, False] >= 40
    if is_even:
        assert seen[False, True] <= seen[False, False] // 20


def test_what_is_ruled_out_with_whole_groups_is_so_with_any_more_micro_batches():
    chance, seen = random.Random(3), Counter()
    for _ in range(400):
        splitter, kinds, virtual, count, _ = drawn(chance, is_even=False)
        fewest = least_held(len(kinds), count)
        seen[splitter.may_fit(kinds, virtual, fewest), splitter.may_fit(kinds, virtual, count + chance.randint(0, 9))] += 1
    assert not seen[False, True]
    assert min(seen[True, True], seen[False, False], seen[True, False]) >= 5


def test_what_layers_add_at_least_is_no_more_than_they_do():
    tied = {"parameter_bytes": 5 * GB, "optimizer_bytes": 7 * GB, "tied_to": "l0", "tied_bytes": 3 * GB}
    layers = [layer(f"l{n}", **(tied if n == 4 else {"parameter_bytes": 4 * GB, "optimizer_bytes": 5 * GB})) for n in range(6)]
    sums = LayerSums(profile_of(layers, optimizer_sharding=OptimizerSharding.ZERO1))
    least = sums.least_static_table(3)
    for cuts in itertools.combinations(range(7), 4):
        (a, b), (c, d) = cuts[:2], cuts[2:]
        assert sums.held_bytes([(a, b), (c, d)], 3) >= least[a, b] + least[c, d]
    assert 0 <= sums.static_bytes(1, 4, 3) - least[1, 4] <= 1


def test_pipelines_that_are_ruled_out_are_not_searched(monkeypatch):
    """However many stages they have: a plan that cannot be is refused at once."""
    sums = LayerSums(profile_of([layer(f"l{n}", parameter_bytes=8 * GB) for n in range(32)]))
    monkeypatch.setattr(ChunkSplitter, "promise", lambda *_: pytest.fail("searched"))
    split = ChunkSplitter(sums, Schedule.INTERLEAVED, LINK, 1).best((WorkerKind(1.0, 10 * GB),) * 8, 2, 8, no_reductions(32))
    assert split.lacking_bytes
