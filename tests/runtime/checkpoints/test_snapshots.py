"""State goes to a checkpoint and comes back bit for bit, under any division; random generators go on where they were."""

import random
import warnings

import numpy as np
import pytest
import torch

from kintsugi.core.decision import StateKind
from kintsugi.core.errors import ReconfigurationError
from kintsugi.runtime.checkpoints.snapshots import (
    SnapshotPool,
    layer_entries,
    layer_part,
    random_entries,
    read_layers,
    read_part,
    restore_random,
    write_part,
    writers,
)
from kintsugi.runtime.models import TrainingJob
from kintsugi.runtime.workers.state import ModelState
from tests.builders import grid_plan
from tests.runtime.jobs import odd_job, tiny_gpt

KINDS = (StateKind.PARAMETER, StateKind.OPTIMIZER, StateKind.BUFFER)


def stepped(job: TrainingJob, layers: range) -> ModelState:
    """State after an update with gradients of its own."""
    state = ModelState.initial(job, layers)
    torch.manual_seed(3)
    for parameter in state.parameters.values():
        if parameter.requires_grad:
            parameter.grad = torch.randn_like(parameter)
    state.update()
    return state


def assert_equal(left, right) -> None:
    assert left.keys() == right.keys()
    for key, value in left.items():
        if isinstance(value, torch.Tensor):
            assert value.dtype == right[key].dtype
            assert torch.equal(value, right[key]), key
        else:
            assert value == right[key]


@pytest.mark.parametrize("make_job", [tiny_gpt, odd_job])
def test_a_checkpoint_of_one_plan_loads_under_any_other(tmp_path, make_job):
    job = make_job()
    whole = stepped(job, range(len(job.layers)))
    for layer in whole.modules:
        write_part(tmp_path, layer_part(layer), layer_entries(whole, layer))
    for cut in range(1, len(job.layers)):
        for layers in (range(cut), range(cut, len(job.layers))):
            loaded = ModelState(job, {}, {}).rebuilt(layers, read_layers(tmp_path, layers))
            for layer in layers:
                for kind in KINDS:
                    assert_equal(loaded.export(layer, kind), whole.export(layer, kind))


def test_a_layer_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ReconfigurationError, match=r"checkpoint: .+ holds no layer 4"):
        read_layers(tmp_path, [4])


def test_empty_and_odd_values_come_back(tmp_path):
    entries = {
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(2.5),
        "plain": 7,
        "none": None,
        "bfloat": torch.ones(2).bfloat16(),
    }
    write_part(tmp_path, "part", entries)
    assert_equal(read_part(tmp_path, "part"), entries)
    write_part(tmp_path, "nothing", {})
    assert read_part(tmp_path, "nothing") == {}


def test_random_generators_go_on_where_they_were(tmp_path):
    random.seed(1)
    random.gauss(0, 1)
    np.random.seed(2)
    np.random.standard_normal()
    torch.manual_seed(3)

    def drawn():
        return random.random(), random.gauss(0, 1), np.random.standard_normal(), float(np.random.random()), float(torch.rand(()))

    write_part(tmp_path, "worker-w00", random_entries())
    expected = drawn()
    drawn()
    restore_random(read_part(tmp_path, "worker-w00"))
    assert drawn() == expected


@pytest.mark.parametrize(("stages", "batches"), [([3], [4]), ([3, 3], [2, 2]), ([2, 3, 1], [2, 1, 1])])
def test_every_layer_is_written_once_by_a_holder(stages, batches):
    plan = grid_plan(8, stages, batches)
    shares = writers(plan)
    assert sorted(layer for layers in shares.values() for layer in layers) == list(range(8))
    assert all(worker in plan.holders[layer] for worker, layers in shares.items() for layer in layers)
    assert shares.keys() == set(plan.workers)


def test_copies_use_memory_again_and_do_not_change_with_the_state():
    pool = SnapshotPool()
    live = {"layer": {"weight": torch.zeros(5), "step": 3}}
    first = pool.copy(live)
    live["layer"]["weight"].add_(1)
    assert first["layer"]["weight"].tolist() == [0.0] * 5
    place = first["layer"]["weight"].data_ptr()
    second = pool.copy(live)
    assert second["layer"]["weight"].data_ptr() != place
    pool.give_back(first)
    third = pool.copy(live)
    assert third["layer"]["weight"].data_ptr() == place
    assert third == {"layer": {"weight": third["layer"]["weight"], "step": 3}}
    pool.give_back(third)
    other = pool.copy({"layer": {"weight": torch.ones(2, 2).double()}})
    assert other["layer"]["weight"].dtype == torch.float64


def test_nothing_warns(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write_part(tmp_path, "part", {"value": torch.ones(1)})
        read_part(tmp_path, "part")
