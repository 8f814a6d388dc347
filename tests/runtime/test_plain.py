"""A plain script goes on where its last checkpoint is, with all that it keeps."""

import json
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import structlog
import torch
from torch import nn

from kintsugi.core.codec import loads
from kintsugi.core.errors import InvalidInputError
from kintsugi.runtime.checkpoints.advice import CheckpointRecord
from kintsugi.runtime.checkpoints.recording import CheckpointOptions, Strategy
from kintsugi.runtime.layout import CHECKPOINTS, JOURNALS, RECORDS
from kintsugi.runtime.plain import PlainRun
from kintsugi.runtime.plain_state import entries_of, load
from kintsugi.runtime.records.audit import audit
from kintsugi.runtime.records.journal import Source
from kintsugi.runtime.synchronization import PeerTransport, SynchronizedOptimizer, SynchronousSGD
from tests.core.refusals import refuses
from tests.runtime.hung_disk import await_threads, hung


def script() -> tuple[nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.3), nn.BatchNorm1d(4), nn.Linear(4, 1)).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    return model, optimizer, halving(optimizer)


def halving(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)


def trained(folder: Path, stop: int, num_steps: int = 9, device: str = "cpu", **options) -> tuple[nn.Module, list[float]]:
    """One process alone, up to `stop`; dropout and noise draw from the global generators."""
    model, optimizer, scheduler = script()
    model.to(device)
    run = PlainRun(
        folder,
        num_samples=20,
        global_batch_size=6,
        num_steps=num_steps,
        checkpoints=CheckpointOptions(**{"every_steps": 2, **options}),
    )
    points = torch.randn(20, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(device)
    losses = []
    for step in range(run.restore(model, optimizer, scheduler), stop):
        optimizer.zero_grad()
        loss = (model(points[list(run.samples(step))]) - random.random()).square().mean()
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(run.commit(step, loss))
    run.close()
    return model, losses


@pytest.fixture(autouse=True)
def seeded():
    random.seed(4)


@pytest.mark.parametrize("strategy", Strategy)
def test_a_script_goes_on_bit_for_bit(tmp_path, strategy):
    whole, losses = trained(tmp_path / "whole", 9)
    random.seed(4)
    _, before = trained(tmp_path / "run", 7, strategy=strategy)
    random.seed(99)
    resumed, after = trained(tmp_path / "run", 9, strategy=strategy)
    assert [*before[:6], *after] == losses
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name
    report = audit(tmp_path / "run")
    assert report.is_exact
    assert report.is_complete
    assert [(u.first, u.last, u.source) for u in report.undone] == [(6, 6, Source.CHECKPOINT)]


def test_what_checkpoints_cost_is_recorded_and_sets_the_interval(tmp_path):
    with structlog.testing.capture_logs() as log:
        trained(tmp_path, 9, every_steps=None, strategy=Strategy.BLOCKING)
    shown = next(line for line in log if line["event"] == "how often checkpoints are best written")
    assert 0 < shown["cost_seconds"] < shown["daly_seconds"] < shown["mtbf_seconds"]
    records = [loads(CheckpointRecord, line) for line in (tmp_path / RECORDS).read_text().splitlines()]
    assert [record.step for record in records] == [1, 9]
    assert shown["every_steps"] > 9
    assert all(0 < record.write_seconds <= record.stall_seconds for record in records)


def test_where_costs_cannot_be_written_down_checkpoints_are_whole_all_the_same(tmp_path):
    (tmp_path / RECORDS).mkdir()
    with structlog.testing.capture_logs() as log:
        _, before = trained(tmp_path, 7)
    assert [line["step"] for line in log if line["log_level"] == "warning"] == [2, 4, 6]
    assert {line["event"] for line in log if line["log_level"] == "warning"} == {
        "what a checkpoint cost could not be written down; the checkpoint is whole"
    }
    _, after = trained(tmp_path, 9)
    assert len(before[:6]) + len(after) == 9


@pytest.mark.parametrize("strategy", Strategy)
def test_a_disk_that_hangs_costs_a_script_its_checkpoints_and_no_step(tmp_path, strategy):
    model = nn.Linear(3, 1).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    checkpoints = CheckpointOptions(every_steps=2, strategy=strategy, disk_timeout_seconds=0.5)
    run = PlainRun(tmp_path, num_samples=20, global_batch_size=6, num_steps=9, checkpoints=checkpoints)
    assert run.restore(model, optimizer) == 0
    held_up = tmp_path / CHECKPOINTS / ".step-00000002.life1" / "state" / ".metadata.tmp"
    with hung(held_up), structlog.testing.capture_logs() as log:
        for step in range(9):
            loss = model(torch.ones(len(run.samples(step)), 3, dtype=torch.float64)).square().mean()
            loss.backward()
            optimizer.step()
            run.commit(step, loss.detach())
        run.close()
        told = [(line["step"], line["reason"]) for line in log if line["log_level"] == "warning"]
        assert sorted(told) == [(step, f"{tmp_path / CHECKPOINTS} has not answered for 0.5 s") for step in (2, 4, 6, 8, 9)]
    with structlog.testing.capture_logs() as log:
        await_threads("checkpoint")
    assert not [line for line in log if "journal" in line["event"]], "a run that is closed has been proven or not"


def test_another_script_does_not_take_the_checkpoints_over(tmp_path):
    trained(tmp_path, 2)
    run = PlainRun(tmp_path, num_samples=20, global_batch_size=6, num_steps=9)
    model = nn.Linear(5, 1)
    with pytest.raises(
        InvalidInputError, match=r"holds checkpoints of another job \(shape of weight: not there before, \[1, 5\] now\)"
    ):
        run.restore(model, torch.optim.SGD(model.parameters(), lr=1.0))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_samples", 1e3),
        ("global_batch_size", 0),
        ("global_batch_size", -6),
        ("num_steps", 2.5),
        ("num_steps", "9"),
        ("seed", 0.5),
        ("mtbf_seconds", float("nan")),
        ("checkpoints", {"every_steps": 2}),
        ("checkpoints", False),
    ],
)
def test_what_no_training_comes_of_is_refused_by_its_name(tmp_path, field, value):
    with refuses(field):
        PlainRun(tmp_path / "run", **{"num_samples": 20, "global_batch_size": 6, "num_steps": 9, field: value})
    assert not (tmp_path / "run").exists()


def test_a_run_that_is_refused_keeps_no_other_process_from_its_folder(tmp_path):
    """As in a notebook, whose process goes on."""
    trained(tmp_path, 2)
    with pytest.raises(InvalidInputError, match="holds journals of another job"):
        PlainRun(tmp_path, num_samples=40, global_batch_size=6, num_steps=9)
    begin = f"from kintsugi.runtime.run_lock import RunLock; from pathlib import Path; RunLock(Path({str(tmp_path)!r})).take()"
    subprocess.run([sys.executable, "-c", begin], check=True, timeout=120)


def test_a_life_that_asks_for_fewer_steps_than_are_trained_is_refused_and_one_that_asks_for_as_many_trains_none(tmp_path):
    trained(tmp_path, 6)
    with refuses("num_steps", 4, "is fewer than the 6 that are trained in"):
        trained(tmp_path, 4, num_steps=4)
    assert trained(tmp_path, 6, num_steps=6)[1] == []
    assert audit(tmp_path).is_complete


def test_another_kind_of_optimizer_does_not_go_on(tmp_path):
    trained(tmp_path, 3)
    run = PlainRun(tmp_path, num_samples=20, global_batch_size=6, num_steps=9)
    model, _, _ = script()
    with pytest.raises(InvalidInputError, match="optimizer: is SGD, and the checkpoint is of AdamW: take that, or a new folder"):
        run.restore(model, torch.optim.SGD(model.parameters(), lr=1.0))


def restored(folder: Path, change) -> None:
    """Go on in a folder after a change of model, optimizer and scheduler."""
    run = PlainRun(folder, num_samples=20, global_batch_size=6, num_steps=9)
    try:
        run.restore(*change(*script()))
    finally:
        run.close()


def grouped(model: nn.Module) -> torch.optim.Optimizer:
    first, *others = model.parameters()
    return torch.optim.AdamW([{"params": [first]}, {"params": others}], lr=0.05)


@pytest.mark.parametrize(
    ("change", "field", "told"),
    [
        (lambda model, *others: (model.float(), *others), "model", "'0.weight' is float32, and float64 in the checkpoint"),
        (lambda model, *_: (model, grouped(model), None), "optimizer", r"has groups of \[1, 5\] parameters, and of \[6\]"),
        (
            lambda model, optimizer, _: (model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 9)),
            "scheduler",
            "is CosineAnnealingLR, and the checkpoint is of StepLR",
        ),
    ],
)
def test_what_the_checkpoint_is_not_of_is_refused_before_anything_is_loaded(tmp_path, change, field, told):
    trained(tmp_path, 5)
    models = []

    def changed(*own):
        models.append(own[0])
        models.append(dict(change(*own)[0].state_dict()))
        return change(*own)

    with pytest.raises(InvalidInputError, match=told) as refused:
        restored(tmp_path, changed)
    assert refused.value.field == field
    model, before = models
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda model, optimizer, _: (model, optimizer, None), [{}]),
        (
            lambda model, *_: (model, other := torch.optim.AdamW(model.parameters(), lr=0.2), halving(other)),
            [{"group": 0, "setting": "initial_lr", "checkpoint": "0.05", "script": "0.2"}],
        ),
        (
            lambda model, *_: (model, other := torch.optim.AdamW(model.parameters(), 0.05, weight_decay=0.5), halving(other)),
            [{"group": 0, "setting": "weight_decay", "checkpoint": "0.01", "script": "0.5"}],
        ),
        (lambda *own: own, []),
    ],
)
def test_settings_that_are_the_checkpoints_and_not_the_scripts_are_told(tmp_path, change, told):
    trained(tmp_path, 5)
    with structlog.testing.capture_logs() as log:
        restored(tmp_path, change)
    assert [{key: value for key, value in one.items() if key not in ("event", "log_level")} for one in log] == told


def settings_told(folder: Path, scheduler_of) -> list[str]:
    """What a second life is told of, where a first one trained with such a scheduler and changed its rate."""
    told = []
    for stop in (5, 6):
        model, _, _ = script()
        optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1), momentum=0.9)
        optimizer.param_groups[0]["memory"] = [torch.full((3,), float(stop)), torch.zeros(2)]
        scheduler = scheduler_of(optimizer)
        run = PlainRun(folder, num_samples=20, global_batch_size=6, num_steps=9, checkpoints=CheckpointOptions(every_steps=5))
        with structlog.testing.capture_logs() as log:
            first = run.restore(model, optimizer, scheduler)
        told += [one["setting"] for one in log]
        for step in range(first, stop):
            run.samples(step)
            optimizer.param_groups[0]["lr"] = torch.tensor(0.01)
            run.commit(step, 1.0)
        run.close()
    return told


def test_what_a_scheduler_changes_and_memory_in_groups_are_no_settings(tmp_path):
    assert settings_told(tmp_path / "plateau", torch.optim.lr_scheduler.ReduceLROnPlateau) == []
    assert settings_told(tmp_path / "by hand", lambda _: None) == ["lr"]


def test_a_scheduler_that_the_checkpoint_has_none_of_is_refused(tmp_path):
    def bare(model, optimizer, _):
        return model, torch.optim.AdamW(model.parameters(), lr=0.05), None

    for change in (bare, lambda *own: own):
        run = PlainRun(tmp_path, num_samples=20, global_batch_size=6, num_steps=9, checkpoints=CheckpointOptions(every_steps=1))
        try:
            if change is bare:
                run.samples(run.restore(*change(*script())))
                run.commit(0, 1.0)
            else:
                with refuses("scheduler", "StepLR", "the checkpoint has none: leave it out"):
                    run.restore(*change(*script()))
        finally:
            run.close()


def test_the_optimizer_within_goes_on_and_no_other_kind():
    """Checkpoints of earlier versions say of a wrapped one that it is wrapped, and go on all the same."""
    model, inner, _ = script()
    wrapped = SynchronizedOptimizer(inner, SynchronousSGD(), PeerTransport.alone())
    entries = entries_of(model, wrapped, None)
    load(entries, model, inner, None)
    load(entries | {"kind": "SynchronizedOptimizer WrappingOptimizer"}, model, wrapped, None)
    wrapped.close()
    other = SynchronizedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), SynchronousSGD(), PeerTransport.alone())
    with refuses("optimizer", "SGD", "is SGD, and the checkpoint is of AdamW: take that, or a new folder"):
        load(entries, model, other, None)
    other.close()


LINEAR = torch.optim.lr_scheduler.LinearLR
STEPS = torch.optim.lr_scheduler.MultiStepLR
SCHEDULERS = {
    "milestones": lambda optimizer: STEPS(optimizer, [2, 4], gamma=0.1),
    "in sequence": lambda optimizer: torch.optim.lr_scheduler.SequentialLR(
        optimizer, [LINEAR(optimizer, total_iters=2), STEPS(optimizer, [2, 3])], [2]
    ),
}
POINTS = torch.randn(20, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def rates_and_weights(folder: Path, stop: int, optimizer_of, scheduler_of) -> tuple[list[float], torch.Tensor]:
    """One process alone, up to `stop`, with a checkpoint after every step: the learning rates, and the weights at the end."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1).double()
    optimizer = optimizer_of(model.parameters())
    scheduler = scheduler_of(optimizer) if scheduler_of else None
    options = CheckpointOptions(every_steps=1, strategy=Strategy.BLOCKING)
    run = PlainRun(folder, num_samples=20, global_batch_size=6, num_steps=6, checkpoints=options)
    rates = []
    for step in range(run.restore(model, optimizer, scheduler), stop):
        indices = list(run.samples(step))

        def loss(indices=indices) -> torch.Tensor:
            optimizer.zero_grad()
            error = (model(POINTS[indices]) - 1.0).square().mean()
            error.backward()
            return error

        optimizer.step(loss)
        if scheduler is not None:
            scheduler.step()
        rates.append(float(optimizer.param_groups[0]["lr"]))
        run.commit(step, 0.0)
    run.close()
    return rates, model.weight.detach()


def descent(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def tensor_rate(parameters) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=torch.tensor(0.01))


OPTIMIZERS = {
    **{name: (descent, scheduler) for name, scheduler in SCHEDULERS.items()},
    "a rate that is a tensor": (tensor_rate, None),
    "both": (tensor_rate, SCHEDULERS["milestones"]),
    "lists of tensors": (lambda parameters: torch.optim.LBFGS(parameters, lr=0.1, max_iter=3), None),
    "numbers in fp32": (lambda parameters: torch.optim.NAdam(parameters, lr=0.1), None),
}


@pytest.mark.parametrize(("optimizer_of", "scheduler_of"), OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_every_kind_of_optimizer_and_scheduler_goes_on_where_it_was(tmp_path, optimizer_of, scheduler_of):
    rates, weights = rates_and_weights(tmp_path / "whole", 6, optimizer_of, scheduler_of)
    before, _ = rates_and_weights(tmp_path / "run", 3, optimizer_of, scheduler_of)
    after, resumed = rates_and_weights(tmp_path / "run", 6, optimizer_of, scheduler_of)
    assert [*before, *after] == rates
    assert torch.equal(resumed, weights)


@pytest.mark.parametrize("scheduler_of", SCHEDULERS.values(), ids=SCHEDULERS)
def test_what_earlier_versions_wrote_is_read(scheduler_of):
    def made() -> tuple[nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
        model = nn.Linear(3, 1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        return model, optimizer, scheduler_of(optimizer)

    model, optimizer, scheduler = made()
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    scheduler.step()
    state = optimizer.state_dict()
    written = {f"model|{name}": value for name, value in model.state_dict().items()}
    written |= {f"optimizer|{index}|{key}": value for index, own in state["state"].items() for key, value in own.items()}
    written |= {"groups": json.dumps(state["param_groups"]), "scheduler": json.dumps(scheduler.state_dict())}
    other, other_optimizer, other_scheduler = made()
    load(written, other, other_optimizer, other_scheduler)
    assert torch.equal(other.weight, model.weight)
    assert torch.equal(other_optimizer.state[other.weight]["exp_avg"], optimizer.state[model.weight]["exp_avg"])
    for _ in range(4):
        optimizer.step()
        scheduler.step()
        other_optimizer.step()
        other_scheduler.step()
        assert other_optimizer.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]


def test_a_run_may_be_closed_twice_and_leaves_no_thread(tmp_path):
    before = set(threading.enumerate())
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = PlainRun(tmp_path, num_samples=4, global_batch_size=2, num_steps=5, checkpoints=CheckpointOptions(every_steps=1))
    run.restore(model, optimizer)
    run.samples(0)
    run.commit(0, 1.0)
    run.close()
    run.close()
    assert set(threading.enumerate()) <= before


FAILING = """
import sys, time
from torch import nn, optim
from kintsugi.runtime.checkpoints import writer
from kintsugi.runtime.checkpoints.recording import CheckpointOptions
from kintsugi.runtime.plain import PlainRun
write = writer.write_part
def slowly(*arguments):
    time.sleep(0.5)
    return write(*arguments)
writer.write_part = slowly
model = nn.Linear(3, 1)
run = PlainRun(sys.argv[1], num_samples=4, global_batch_size=2, num_steps=5, checkpoints=CheckpointOptions(every_steps=1))
first = run.restore(model, optim.SGD(model.parameters(), lr=0.1))
print("first", first)
run.samples(first)
run.commit(first, 1.0)
raise SystemExit("the script's own mistake")
"""


@pytest.mark.processes
def test_what_is_being_written_when_a_script_fails_is_whole(tmp_path):
    for first in (0, 1):
        command = [sys.executable, "-c", FAILING, str(tmp_path)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=240.0, check=False)
        assert (ended.returncode, f"first {first}" in ended.stdout) == (1, True), ended.stderr
        assert "the script's own mistake" in ended.stderr


class Calibrated(nn.Linear):
    """Keeps what it has seen beside parameters and buffers: plain values, and a tensor that grows."""

    def __init__(self, kept: type = dict) -> None:
        super().__init__(3, 1, dtype=torch.float64)
        self.kept = kept
        self.seen = torch.zeros(0)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        self.seen = torch.cat([self.seen, values.detach().abs().max().reshape(1).float()])
        return super().forward(values)

    def get_extra_state(self):
        return {"times": len(self.seen), "seen": self.seen} if self.kept is dict else self.kept(self.seen)

    def set_extra_state(self, state) -> None:
        self.seen = state["seen"] if self.kept is dict else state


@pytest.mark.parametrize("kept", [dict, torch.clone], ids=["plain", "tensor"])
def test_what_modules_keep_beside_their_tensors_goes_on(tmp_path, kept):
    for stop in (3, 5):
        model = Calibrated(kept)
        run = PlainRun(tmp_path, num_samples=4, global_batch_size=2, num_steps=5, checkpoints=CheckpointOptions(every_steps=1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(run.restore(model, optimizer), stop):
            run.samples(step)
            run.commit(step, model(torch.full((2, 3), float(step), dtype=torch.float64)).sum())
        run.close()
    assert model.seen.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_what_modules_keep_and_cannot_be_written_is_refused_before_anything_is_trained(tmp_path):
    model = Calibrated(bytes)
    run = PlainRun(tmp_path, num_samples=4, global_batch_size=2, num_steps=5)
    with pytest.raises(InvalidInputError, match="extra_state: holds a bytes"):
        run.restore(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / JOURNALS).touch()
    for folder, named in ((tmp_path / "file", "file"), (tmp_path / "run", f"run/{JOURNALS}")):
        with refuses("run", str(tmp_path / named), "name another one"):
            PlainRun(folder, num_samples=20, global_batch_size=6, num_steps=9)


def test_a_scheduler_that_cannot_be_written_is_refused_before_anything_is_trained(tmp_path):
    model, optimizer, scheduler = script()
    scheduler.listeners = {print}
    run = PlainRun(tmp_path, num_samples=20, global_batch_size=6, num_steps=9)
    with pytest.raises(InvalidInputError, match="scheduler: holds a set"):
        run.restore(model, optimizer, scheduler)
