"""Plans for workers of little and unequal memory, against all plans there are."""

import math
import random
from dataclasses import replace

import pytest

from kintsugi.core.cluster import Cluster, Worker
from kintsugi.core.errors import InfeasibleError
from kintsugi.core.plan import Schedule
from planner.legality import violations
from planner.replan import replan
from tests.builders import layer, profile_of, snapshot_of
from tests.planner.tight import LINK, NOT_REDUCED, best_tight_seconds, tight_job

PIPELINED = [Schedule.ONE_F_ONE_B, Schedule.EAGER_1F1B, Schedule.GPIPE, Schedule.ZB_H1, Schedule.ZB_H2]


def step_seconds(profile, cluster, microbatches, schedule):
    """Of our plan, which is checked; infinite where there is none."""
    asked = snapshot_of(profile, cluster, microbatches)
    asked = replace(asked, settings=replace(asked.settings, schedule=schedule))
    try:
        decision = replan(asked)
    except InfeasibleError:
        return math.inf
    assert violations(asked, decision) == ()
    return decision.estimate.iteration_seconds


def workers_of(*kinds):
    """Workers of these memories and speeds, each alone on its host."""
    return Cluster(
        name="tight",
        workers=tuple(
            Worker(id=f"w{n:02d}", host=f"h{n:02d}", memory_bytes=memory, speed_ratio=speed)
            for n, (memory, speed) in enumerate(kinds)
        ),
    )


@pytest.mark.parametrize("schedule", PIPELINED, ids=lambda item: item.value)
def test_small_jobs_get_the_best_plan_that_fits(schedule):
    chance, ratios = random.Random(19), []
    for _ in range(50):
        job = tight_job(chance, most_workers=4, most_layers=7)
        ours, best = step_seconds(*job, schedule), best_tight_seconds(*job, schedule)
        if math.isinf(best):
            assert math.isinf(ours)
            continue
        ratios.append(ours / best)
    assert len(ratios) >= 20
    assert min(ratios) > 1 - 1e-9
    assert max(ratios) < 1 + 1e-9


EVEN = profile_of([layer(f"l{n}", **NOT_REDUCED) for n in range(4)], inter_host=LINK)
BUSY_END = profile_of(
    [
        layer("l0", forward_seconds=0.0051, backward_input_seconds=0.005, backward_weight_seconds=0.005, **NOT_REDUCED),
        layer("l1", forward_seconds=0.0058, backward_input_seconds=0.004, backward_weight_seconds=0.004, **NOT_REDUCED),
        layer("l2", optimizer_bytes=1_600_000_000, activation_bytes=300_000_000, **NOT_REDUCED),
    ],
    inter_host=LINK,
)
GB = 10**9


@pytest.mark.parametrize("schedule", PIPELINED, ids=lambda item: item.value)
@pytest.mark.parametrize(
    ("profile", "kinds", "microbatches"),
    [
        (EVEN, [(2.4, 1.0), (0.7, 1.0), (0.7, 1.0), (0.7, 1.0), (0.7, 1.0)], 2),  # one by itself, four of which none has room
        (EVEN, [(1.1, 1.0), (2.4, 1.0), (2.4, 1.0), (1.1, 1.0), (2.4, 1.0)], 4),  # three by themselves, two together
        (BUSY_END, [(2.45, 1.0), (2.17, 0.5), (1.085, 0.5), (2.17, 0.5), (1.085, 1.0)], 4),  # the roomiest of three is last
    ],
    ids=["one and four", "three and two", "last"],
)
def test_pipelines_are_as_short_as_the_memory_of_their_own_workers_allows(profile, kinds, microbatches, schedule):
    cluster = workers_of(*((int(gigabytes * GB), speed) for gigabytes, speed in kinds))
    best = best_tight_seconds(profile, cluster, microbatches, schedule)
    assert step_seconds(profile, cluster, microbatches, schedule) == pytest.approx(best)


@pytest.mark.parametrize("schedule", [Schedule.INTERLEAVED, Schedule.INTERLEAVED_ZB], ids=lambda item: item.value)
@pytest.mark.parametrize("seed", [136, 214, 284, 393])
def test_interleaved_pipelines_have_their_roomiest_workers_where_most_is_held(seed, schedule):
    job = tight_job(random.Random(seed))
    assert step_seconds(*job, schedule) == pytest.approx(best_tight_seconds(*job, schedule))
