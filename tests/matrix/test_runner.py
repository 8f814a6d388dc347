"""A small cut of the matrix: real processes, real failures."""

import errno
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kintsugi.cli import main
from kintsugi.cli import matrix as command
from kintsugi.core.codec import dumps
from kintsugi.core.errors import InvalidInputError, WorkerError
from kintsugi.core.profile import Device, LayerProfile, LinkCost, Network, Profile, Provenance, ProvenanceKind, Recovery
from kintsugi.matrix import runner, store
from kintsugi.matrix.cell import Variant
from kintsugi.matrix.data import export
from kintsugi.matrix.execution import StoppedError
from kintsugi.matrix.manifest import CellStatus
from kintsugi.matrix.preparation import PROFILES
from kintsugi.matrix.runner import Asked, run_matrix
from kintsugi.matrix.suites import Matrix
from kintsugi.matrix.workload import Model, Schedule, job_of
from kintsugi.runtime.run_lock import RunLock
from tests.full_disks import without_room_for
from tests.matrix import records

MODEL = Model(
    name="tiny",
    data_set="digits",
    num_blocks=1,
    width=4,
    device_seconds=0.0,
    num_steps=12,
    every_steps=4,
    microbatch_size=2,
    num_microbatches=6,
    num_kept=1,
)
MATRIX = Matrix(
    models=(MODEL,),
    schedules=(Schedule(name="once", at=(0.5,), comes_back=False),),
    elastic=(),
    seeds=(0,),
    sweep_models=(),
    world_size=3,
)
CELLS = {cell.variant: cell for cell in MATRIX.cells()}


def tiny_profile(folder) -> Profile:
    """One that needs no measuring."""
    link = LinkCost(alpha_seconds=1e-4, beta_seconds_per_byte=1e-9)
    names = [layer.name for layer in job_of(MODEL, export("digits", folder / "data"), 0).layers]
    seconds = dict.fromkeys(("forward_seconds", "backward_input_seconds", "backward_weight_seconds", "optimizer_seconds"), 1e-3)
    sizes = dict.fromkeys(("parameter_bytes", "gradient_bytes", "optimizer_bytes", "activation_bytes", "output_bytes"), 10_000)
    return Profile(
        name="tiny",
        microbatch_size=MODEL.microbatch_size,
        provenance=Provenance(kind=ProvenanceKind.ANALYTICAL, detail="for a test"),
        layers=tuple(LayerProfile(name=name, **seconds, **sizes) for name in names),
        device=Device(name="none", memory_bytes=10**9, reserved_bytes=0),
        network=Network(intra_host=link, inter_host=link),
        recovery=Recovery(regroup_seconds=0.05, restart_seconds=5.0),
    )


def write_profile(folder) -> None:
    (folder / PROFILES).mkdir(parents=True)
    (folder / PROFILES / "tiny.json").write_text(dumps(tiny_profile(folder)))


@pytest.mark.processes
def test_every_strategy_ends_where_the_reference_does(tmp_path):
    write_profile(tmp_path)
    variants = (Variant.REFERENCE, Variant.OVERLAPPED, Variant.MEMORY)
    asked = Asked(only=tuple(CELLS[variant].name for variant in variants))
    manifest = run_matrix(MATRIX, tmp_path, asked)
    assert [(entry.status, entry.reason) for entry in manifest.entries] == [(CellStatus.COMPLETED, "")] * 3
    records = {variant: store.read_record(CELLS[variant], tmp_path) for variant in variants}
    steps = {variant: store.read_steps(CELLS[variant], tmp_path) for variant in variants}
    for variant, record in records.items():
        assert record.audit.has_passed
        assert record.committed_steps == MODEL.num_steps
        assert len(record.failures) == record.planned_failures == (0 if variant is Variant.REFERENCE else 1)
        assert record.world_sizes == ((3,) if variant is Variant.REFERENCE else (3, 2))
        assert record.num_restarts == (1 if variant is Variant.OVERLAPPED else 0)
        assert record.wall.rest_seconds >= -0.01 * record.wall.total_seconds
        losses = [step.loss for step in steps[variant]]
        assert losses == pytest.approx([step.loss for step in steps[Variant.REFERENCE]], rel=1e-12)
    for variant in (Variant.OVERLAPPED, Variant.MEMORY):
        apart = [step.parameter_distance for step in steps[variant] if step.parameter_distance is not None]
        assert apart
        assert max(apart) < 1e-10
    assert records[Variant.OVERLAPPED].trained_samples > records[Variant.MEMORY].trained_samples
    assert records[Variant.OVERLAPPED].checkpoints.num_written >= 2  # the kill may come between a checkpoint and its record
    again = run_matrix(MATRIX, tmp_path, asked)
    assert {entry.status for entry in again.entries} == {CellStatus.SKIPPED_EXISTS}


@pytest.fixture
def executed(monkeypatch, tmp_path):
    """Names of the cells that were run, none of them really; a cell whose name is in `failing` fails."""
    names: list[str] = []
    failing: dict[str, Exception] = {}

    def execute(orders, matrix):
        names.append(orders.cell.name)
        if orders.cell.name in failing:
            raise failing[orders.cell.name]

    monkeypatch.setattr(runner, "execute", execute)
    write_profile(tmp_path)
    return names, failing


def test_a_cell_whose_record_is_torn_runs_again(executed, tmp_path):
    torn = CELLS[Variant.BLOCKING]
    torn.folder(tmp_path).mkdir(parents=True)
    (torn.folder(tmp_path) / store.RECORD).write_text('{"cell": ')
    run_matrix(MATRIX, tmp_path, Asked())
    assert executed[0] == [cell.name for cell in MATRIX.cells()]


def test_a_cell_that_fails_is_noted_and_the_others_run(executed, tmp_path):
    names, failing = executed
    failing[CELLS[Variant.BLOCKING].name] = WorkerError("it broke", field="cell")
    manifest = run_matrix(MATRIX, tmp_path, Asked())
    assert len(names) == 4
    assert {entry.cell.variant: entry.reason for entry in manifest.entries if entry.status is CellStatus.FAILED} == {
        Variant.BLOCKING: "it broke"
    }
    assert store.read_manifest(tmp_path) == manifest


def test_who_stops_it_finds_all_that_ran_in_the_manifest(executed, tmp_path):
    names, failing = executed
    failing[CELLS[Variant.OVERLAPPED].name] = StoppedError("stopped", field="cell")
    with pytest.raises(StoppedError):
        run_matrix(MATRIX, tmp_path, Asked())
    statuses = {entry.cell.variant: entry.status for entry in store.read_manifest(tmp_path).entries}
    assert statuses[Variant.BLOCKING] is CellStatus.COMPLETED
    assert statuses[Variant.OVERLAPPED] is CellStatus.PENDING
    assert len(names) == 3


def test_a_folder_keeps_to_one_matrix(executed, tmp_path):
    run_matrix(MATRIX, tmp_path, Asked(only=("*/reference-*",)))
    more = run_matrix(replace(MATRIX, seeds=(0, 1)), tmp_path, Asked(only=("*/memory-*",)))
    assert [entry.cell.name for entry in more.entries] == [
        "digits-tiny-once/reference-seed0",
        "digits-tiny-once/memory-seed0",
        "digits-tiny-once/memory-seed1",
    ]
    with pytest.raises(InvalidInputError, match="other settings"):
        run_matrix(replace(MATRIX, max_in_flight=1), tmp_path, Asked())


def test_a_second_command_does_not_touch_what_the_first_one_runs(executed, tmp_path):
    with RunLock(tmp_path, runner.LOCK):
        told = subprocess.run(
            [sys.executable, "-m", "kintsugi.cli", "matrix", str(tmp_path)], capture_output=True, text=True, check=False
        )
    assert told.returncode == 2
    assert f"{tmp_path} is in use by process {os.getpid()}" in told.stderr
    assert not (tmp_path / store.MANIFEST).exists()


@pytest.mark.parametrize("name", ["settings.json", "manifest.json", "data/digits.npz"])
def test_without_room_the_file_is_named_and_nothing_is_left_of_it(executed, capfd, tmp_path, monkeypatch, name):
    (tmp_path / name).unlink(missing_ok=True)
    monkeypatch.setattr(command, "MATRIX", MATRIX)
    without_room_for(tmp_path / name)
    with pytest.raises(SystemExit, match="2"):
        main(["matrix", str(tmp_path)])
    told = capfd.readouterr().err
    assert "cannot be written: No space left on device; make room, then run the same command again" in told
    assert name in told
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(Path(name).name)]


def test_a_cell_for_which_there_is_no_room_is_noted_as_failed(executed, tmp_path):
    _, failing = executed
    failing[CELLS[Variant.BLOCKING].name] = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "orders.json")
    manifest = run_matrix(MATRIX, tmp_path, Asked())
    assert {entry.cell.variant: entry.reason for entry in manifest.entries if entry.status is CellStatus.FAILED} == {
        Variant.BLOCKING: "its files cannot be written or read: [Errno 28] No space left on device: 'orders.json'"
    }


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 torn", b"no archive", b"\x93NUMPY"])
def test_a_damaged_data_set_is_named(tmp_path, content):
    (tmp_path / "digits.npz").write_bytes(content)
    with pytest.raises(InvalidInputError, match=r"is damaged .*; remove it") as caught:
        export("digits", tmp_path)
    assert caught.value.value == str(tmp_path / "digits.npz")


def test_damaged_steps_are_trained_again(executed, tmp_path):
    damaged = CELLS[Variant.BLOCKING]
    records.write([records.record(damaged)], tmp_path)
    path = damaged.folder(tmp_path) / store.STEPS
    path.write_bytes(path.read_bytes() + b"0" * 200_000)  # more than a field of CSV may have
    (tmp_path / store.MANIFEST).unlink()
    run_matrix(MATRIX, tmp_path, Asked())
    assert damaged.name in executed[0]


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/none"])
def test_a_folder_that_cannot_be_made_is_refused_by_name(capsys, tmp_path, place):
    (tmp_path / "file").write_text("{}")
    with pytest.raises(SystemExit, match="2"):
        main(["matrix", str(tmp_path / place), "--seeds", "1", "--only", "digits-*/memory-*"])
    assert capsys.readouterr().err.startswith("kintsugi: folder: is no folder that can be made and written to")


@pytest.mark.parametrize("stop", [StoppedError("stopped", field="cell"), KeyboardInterrupt()])
@pytest.mark.parametrize("work", ["run_matrix", "write_report"])
@pytest.mark.usefixtures("executed")
def test_who_stops_it_is_told_how_to_go_on(capsys, tmp_path, monkeypatch, work, stop):
    def stopped(*_):
        raise stop

    monkeypatch.setattr(command, "MATRIX", MATRIX)
    monkeypatch.setattr(command, work, stopped)
    with pytest.raises(SystemExit, match="130"):
        main(["matrix", str(tmp_path)])
    assert capsys.readouterr().err.endswith("stopped; the same command goes on\n")


def lived(code: str) -> subprocess.CompletedProcess[str]:
    """A process of a cell's job that does nothing else."""
    script = f"from kintsugi.matrix import child\ndef live():\n    {code}\nchild._live = live\nchild.main()"
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)


def test_a_stopped_life_ends_without_a_word():
    ended = lived("raise KeyboardInterrupt")
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def test_what_the_processes_of_a_cell_say_is_no_part_of_the_report():
    ended = lived("import os; print('told', flush=True); os.system('echo by a worker')")
    assert (ended.stdout, ended.stderr) == ("", "told\nby a worker\n")


def test_cells_are_named_or_reported_not_both(capsys, tmp_path):
    with pytest.raises(SystemExit, match="2"):
        main(["matrix", str(tmp_path), "--list", "--report"])
    assert "report: contradicts --list" in capsys.readouterr().err


@pytest.mark.parametrize("choice", [("--seeds", "3"), ("--only", "digits-*"), ("--sweep",)])
def test_a_report_tells_of_all_cells(capsys, tmp_path, choice):
    with pytest.raises(SystemExit, match="2"):
        main(["matrix", str(tmp_path), "--report", *choice])
    assert f"{choice[0][2:]}: contradicts --report" in capsys.readouterr().err


def test_the_command_names_the_cells(capsys, tmp_path):
    with pytest.raises(SystemExit, match="0"):
        main(["matrix", str(tmp_path), "--list", "--seeds", "1", "--only", "text-*-late/*"])
    assert set(capsys.readouterr().out.split()) == {
        f"text-{model}-late/{variant}-seed0" for model in ("decoder2", "decoder4") for variant in Variant
    }
