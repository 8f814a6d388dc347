"""torch.distributed.pipelining itself reads the CSV back: same order, every pass once, no deadlock."""

import csv
import importlib
import io

import pytest

from estimator.interleaved import worker_order
from kintsugi.core.cluster import Cluster
from kintsugi.core.errors import InvalidInputError
from kintsugi.core.plan import Policy, Schedule
from kintsugi.formats.schedule_csv import schedule_csv
from planner.replan import replan
from restorer.rounds import colour_rounds
from tests.builders import grid_plan, snapshot_of, uniform_profile

CASES = [
    (Schedule.ONE_F_ONE_B, 2, 1, 4),
    (Schedule.ONE_F_ONE_B, 4, 1, 3),
    (Schedule.EAGER_1F1B, 4, 1, 9),
    (Schedule.GPIPE, 3, 1, 5),
    (Schedule.ZB_H1, 4, 1, 8),
    (Schedule.ZB_H1, 3, 1, 2),
    (Schedule.ZB_H2, 3, 1, 9),
    (Schedule.INTERLEAVED, 2, 2, 4),
    (Schedule.INTERLEAVED, 3, 3, 7),
    (Schedule.INTERLEAVED_ZB, 2, 2, 4),
    (Schedule.INTERLEAVED_ZB, 3, 3, 7),
]


@pytest.fixture(scope="module")
def torchs():
    """Loaded when a test asks for it, not by all who look for tests."""
    return importlib.import_module("tests.formats.torchs")


def exported(schedule, num_ranks, per_rank, num_microbatches):
    plan = grid_plan(12, [num_ranks], [num_microbatches], schedule=schedule, stages_per_worker=per_rank)
    return schedule_csv(plan, plan.pipelines[0])


@pytest.mark.parametrize(("schedule", "num_ranks", "per_rank", "num_microbatches"), CASES)
def test_torch_reads_the_schedule_back(schedule, num_ranks, per_rank, num_microbatches, *, tmp_path, torchs):
    path = tmp_path / "schedule.csv"
    path.write_text(exported(schedule, num_ranks, per_rank, num_microbatches))
    runtime = torchs.Runtime(num_ranks, num_ranks * per_rank, num_microbatches)
    runtime._load_csv(str(path))
    assert runtime.stage_index_to_group_rank == {stage: stage % num_ranks for stage in range(num_ranks * per_rank)}
    for rank, actions in runtime.pipeline_order.items():
        order = worker_order(schedule, rank, num_ranks, num_ranks * per_rank, num_microbatches)
        assert [str(action) for action in actions] == [step.text(stage) for stage, step in order]
    torchs.simulate(dict(torchs.lowered(runtime)), lambda stage: stage % num_ranks, num_ranks * per_rank)


def test_a_deadlock_would_be_noticed(tmp_path, torchs):
    path = tmp_path / "schedule.csv"
    path.write_text("0F0,0B0\n1B0,1F0\n")
    with pytest.raises(AssertionError, match="without first running Forward"):
        torchs.Runtime(2, 2, 1)._load_csv(str(path))


def test_split_backward_passes_are_torchs_own_letters(torchs):
    rows = list(csv.reader(io.StringIO(exported(Schedule.ZB_H1, 3, 1, 4))))
    kinds = {torchs.kind(cell) for row in rows[1:] for cell in row}
    assert kinds == {"F", "I", "W"}


def test_a_rerouted_plan_and_one_without_a_pipeline_are_refused():
    profile, cluster = uniform_profile(4), Cluster.uniform(4)
    plan = grid_plan(4, [2, 2], [4, 4])
    plan = plan.amended(rounds=colour_rounds(plan, profile))
    rerouted = replan(snapshot_of(profile, cluster, 8, plan=plan, lost=["w03"], policy=Policy.DATA_REROUTING)).plan
    with pytest.raises(InvalidInputError, match="is dead and its micro-batches are rerouted") as refused:
        schedule_csv(rerouted, rerouted.pipelines[0])
    assert refused.value.field == "pipelines[1].stages[1]"
    alone = grid_plan(4, [1], [2])
    with pytest.raises(InvalidInputError, match="nothing to schedule"):
        schedule_csv(alone, alone.pipelines[0])
