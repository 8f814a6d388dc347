"""State goes to a checkpoint and comes back bit for bit, under any division; random generators go on where they were."""

import json
import random
import warnings
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

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
from kintsugi.runtime.layer import Layer
from kintsugi.runtime.models import TrainingJob
from kintsugi.runtime.workers.state import ModelState
from tests.builders import grid_plan
from tests.full_disk import room_for
from tests.runtime.jobs import odd_job, tiny_gpt

KINDS = (StateKind.PARAMETER, StateKind.OPTIMIZER, StateKind.BUFFER)


def stepped(job: TrainingJob, layers: range) -> ModelState:
    """State after an update with gradients of its own."""
    state = ModelState.initial(job, layers)
    torch.manual_seed(3)
    for parameter in state.parameters.values():
        if parameter.requires_grad:
            parameter.grad = torch.randn_like(parameter)
    state.update(0)
    return state


def assert_equal(left, right) -> None:
    assert left.keys() == right.keys()
    for key, value in left.items():
        if isinstance(value, torch.Tensor):
            assert value.dtype == right[key].dtype
            assert torch.equal(value, right[key]), key
        else:
            assert value == right[key]


@pytest.mark.parametrize("make_job", [tiny_gpt, odd_job, partial(odd_job, "preconditioned"), partial(odd_job, "averaging")])
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


class Keyed(nn.Module):
    """A parameter and a buffer whose names hold what stood between the parts of names in checkpoints."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterDict({"a|b": torch.ones(2, 2)})
        self.register_buffer("[c|d", torch.ones(3))


class Counting(torch.optim.SGD):
    """Keeps something under such a name, too."""

    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["e|f"] = self.state[parameter].get("e|f", 0) + 1
        super().step()


def counting(parameters) -> torch.optim.Optimizer:
    return Counting([p for _, p in parameters], lr=0.1)


def test_names_of_layers_parameters_and_state_may_hold_anything(tmp_path):
    job = replace(odd_job(), layers=[Layer(name='[block|"5"', build=Keyed)], optimizer=counting)
    whole = stepped(job, range(1))
    write_part(tmp_path, layer_part(0), layer_entries(whole, 0))
    loaded = ModelState(job, {}, {}).rebuilt([0], read_layers(tmp_path, [0]))
    for kind in KINDS:
        assert_equal(loaded.export(0, kind), whole.export(0, kind))
    assert [value for (_, key), value in loaded.export(0, StateKind.OPTIMIZER).items() if key == "e|f"] == [1]


@pytest.mark.parametrize("name", ["block", "block|5"])
def test_checkpoints_of_earlier_versions_are_read(tmp_path, name):
    job = odd_job()
    job = replace(job, layers=[replace(job.layers[2], name=name, tied={})])
    whole = stepped(job, range(1))
    entries = layer_entries(whole, 0)
    write_part(tmp_path / "now", layer_part(0), entries)
    write_part(tmp_path / "earlier", layer_part(0), {"|".join(json.loads(name)): value for name, value in entries.items()})
    now, earlier = (read_layers(tmp_path / folder, [0]) for folder in ("now", "earlier"))
    assert now.keys() == earlier.keys()
    for place, values in now.items():
        assert_equal(earlier[place], values)


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


class Devices:
    """Two CUDA devices, as torch.cuda shows them; notes what is done with them. Whatever else uses CUDA fails without them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, is_initialized: bool) -> None:
        self.is_initialized = is_initialized
        self.done: list[object] = []
        for name in ("is_initialized", "init", "get_rng_state_all", "set_rng_state"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, f"_{name}"))
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)

    def _is_initialized(self) -> bool:
        return self.is_initialized

    def _init(self) -> None:
        if not self.is_initialized:
            self.is_initialized = True
            self.done.append("init")

    def _get_rng_state_all(self) -> list[torch.Tensor]:
        self._init()
        return [torch.tensor([index], dtype=torch.uint8) for index in range(2)]

    def _set_rng_state(self, state: torch.Tensor, device: int) -> None:
        self.done.append((device, state.item()))


def test_generators_of_devices_are_taken_and_set_back_where_devices_are_in_use(tmp_path, monkeypatch):
    devices = Devices(monkeypatch, is_initialized=True)
    write_part(tmp_path, "worker-w00", random_entries())
    restore_random(read_part(tmp_path, "worker-w00"))
    assert devices.done == [(0, 0), (1, 1)]


def test_devices_that_are_not_in_use_stay_so(tmp_path, monkeypatch):
    """A worker of a CPU job on a machine with devices takes none of their memory."""
    devices = Devices(monkeypatch, is_initialized=False)
    write_part(tmp_path, "worker-w00", random_entries())
    entries = read_part(tmp_path, "worker-w00")
    assert entries.keys() == {"python", "numpy", "torch"}
    restore_random(entries)
    assert devices.done == []


def test_generators_of_devices_are_set_back_after_seeds_that_wait_for_the_first_use(monkeypatch):
    """Which would set both, the seeds last."""
    entries = random_entries() | {"cuda.1": torch.tensor([7], dtype=torch.uint8), "cuda.2": torch.tensor([8], dtype=torch.uint8)}
    devices = Devices(monkeypatch, is_initialized=False)
    restore_random(entries)
    assert devices.done == ["init", (1, 7)]


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


class OnDevice(torch.Tensor):
    """Says that it lies on a CUDA device."""

    is_cuda = True


def test_copies_from_devices_lie_in_pinned_memory(monkeypatch):
    """Which cannot be had without a device."""
    pinned = {}

    def empty(*size, pin_memory, make=torch.empty, **options):
        memory = make(*size, **options)
        pinned[memory.data_ptr()] = pin_memory
        return memory

    monkeypatch.setattr(torch, "empty", empty)
    values = {"host": torch.ones(3), "device": torch.full((3,), 2.0).as_subclass(OnDevice)}
    copied = SnapshotPool().copy({"layer": values})["layer"]
    assert {name: pinned[value.data_ptr()] for name, value in copied.items()} == {"host": False, "device": True}
    assert {name: value.tolist() for name, value in copied.items()} == {"host": [1.0] * 3, "device": [2.0] * 3}


@pytest.mark.parametrize("num_bytes", [0, 600, 2_000, 70_000])
def test_a_part_that_does_not_fit_on_the_disk_fails_in_the_disks_words(tmp_path, num_bytes):
    with room_for(num_bytes), pytest.raises(OSError, match="File too large"):
        write_part(tmp_path, "part", {"value": torch.ones(100_000)})


def test_every_value_that_is_read_is_told_of(tmp_path):
    """So that a part which takes long is not taken for one that the disk does not give."""
    write_part(tmp_path, "part", {"a": torch.ones(3), "b": torch.ones(2), "c": "text"})
    told = []
    assert set(read_part(tmp_path, "part", lambda: told.append(None))) == {"a", "b", "c"}
    assert len(told) == 3


def test_nothing_warns(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write_part(tmp_path, "part", {"value": torch.ones(1)})
        read_part(tmp_path, "part")
