"""Synthetic cells whose every figure is known by hand."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from kintsugi.matrix.cell import Cell, Suite, Variant
from kintsugi.matrix.gates import RESTARTING
from kintsugi.matrix.manifest import CellStatus, Manifest, ManifestEntry
from kintsugi.matrix.record import CellRecord, CheckpointTotals, Failure, Quality, StepRecord, Verdict, WallTime
from kintsugi.matrix.results import Results
from kintsugi.matrix.store import write_manifest, write_record
from kintsugi.runtime.supervising.supervision import EndReason, SupervisedAttempt

NUM_STEPS = 100
BATCH_SIZE = 8
SUITES = tuple(
    Suite(data_set=data_set, model=model, schedule=schedule)
    for data_set in ("digits", "text")
    for model in ("small", "large")
    for schedule in ("early", "late")
)
WALLS = {
    Variant.REFERENCE: WallTime(
        total_seconds=100.0,
        compute_seconds=80.0,
        snapshot_seconds=1.0,
        write_seconds=8.0,
        sync_seconds=1.0,
        restart_seconds=0.0,
        repeated_seconds=0.0,
        start_seconds=6.0,
    ),
    Variant.BLOCKING: WallTime(
        total_seconds=125.0,
        compute_seconds=80.0,
        snapshot_seconds=1.0,
        write_seconds=8.0,
        sync_seconds=1.0,
        restart_seconds=15.0,
        repeated_seconds=10.0,
    ),
    Variant.OVERLAPPED: WallTime(
        total_seconds=120.0,
        compute_seconds=82.0,
        snapshot_seconds=1.0,
        write_seconds=0.5,
        sync_seconds=1.5,
        restart_seconds=15.0,
        repeated_seconds=10.0,
    ),
    Variant.MEMORY: WallTime(
        total_seconds=102.0,
        compute_seconds=85.0,
        snapshot_seconds=1.0,
        write_seconds=0.5,
        sync_seconds=1.5,
        restart_seconds=2.0,
        repeated_seconds=1.0,
    ),
}
"""Goodput 1.0, 0.8, 0.8333 and 0.9804 steps/s; start and rest 10, 10, 10 and 11 s."""


def cell(variant: Variant, *, suite: Suite = SUITES[0], seed: int = 0, **changes: object) -> Cell:
    return Cell(**{"suite": suite, "variant": variant, "seed": seed, "every_steps": 10, "max_in_flight": 2, **changes})


def record(of: Cell, *, wall: WallTime | None = None, scale: float = 1.0, **changes: object) -> CellRecord:
    """A cell that went as planned; `scale` multiplies all its times."""
    wall = wall or WALLS[of.variant]
    scaled = WallTime(**{name: getattr(wall, name) * scale for name in WallTime.__dataclass_fields__})
    strikes = () if of.variant is Variant.REFERENCE else (Failure(step=40, worker="w03", how="kill"),) * 2
    values: dict[str, object] = {
        "cell": of,
        "world_sizes": (4, 3, 4) if of.variant is Variant.MEMORY else (4,),
        "global_batch_size": BATCH_SIZE,
        "num_steps": NUM_STEPS,
        "committed_steps": NUM_STEPS,
        "trained_samples": (NUM_STEPS + 10 * bool(strikes)) * BATCH_SIZE,
        "wall": scaled,
        "checkpoints": CheckpointTotals(
            strategy="blocking" if of.variant in (Variant.REFERENCE, Variant.BLOCKING) else "overlapped",
            num_written=10,
            state_bytes=1_000_000,
            snapshot_seconds=scaled.snapshot_seconds,
            write_seconds=8.0 * scale,
            backpressure_seconds=0.0,
            memory_copy_seconds=scaled.snapshot_seconds / 10,
        ),
        "attempts": attempts(1 + len(strikes) * (of.variant in RESTARTING)),
        "failures": strikes,
        "planned_failures": len(strikes),
        "recovery_seconds": (scaled.recovery_seconds / 2,) * len(strikes),
        "audit": Verdict(is_complete=True, duplicates=0, missing=0, extra=0),
        "quality": Quality(held_out_loss=0.5, held_out_accuracy=0.9),
    }
    return CellRecord(**{**values, **changes})


def attempts(number: int) -> tuple[SupervisedAttempt, ...]:
    """So many starts, all but the last killed."""
    ends = [(137, EndReason.KILLED)] * (number - 1) + [(0, EndReason.COMPLETED)]
    return tuple(
        SupervisedAttempt(number=index, started_at=float(index), ended_at=index + 1.0, exit_code=code, reason=reason)
        for index, (code, reason) in enumerate(ends)
    )


def steps(of: Cell, *, shift: float = 0.0, distance: float | None = 0.0) -> tuple[StepRecord, ...]:
    """Losses 1, 1/2, 1/3, ... plus `shift`."""
    return tuple(
        StepRecord(
            global_step=step,
            epoch=step // 50,
            cursor_step=step % 50,
            world_size=4,
            ranks=4,
            sample_ids_count=BATCH_SIZE,
            sample_ids_hash=f"{step:016x}",
            loss=1 / (step + 1) + shift,
            parameter_distance=distance,
            seconds=0.25,
        )
        for step in range(NUM_STEPS)
    )


def manifest(cells: Iterable[Cell], *, status: CellStatus = CellStatus.COMPLETED) -> Manifest:
    return Manifest(
        name="synthetic",
        started_at="2026-01-31T12:00:00Z",
        environment={"CPU": "none", "Cores": "2"},
        entries=tuple(ManifestEntry(cell=each, status=status) for each in cells),
    )


def whole_matrix(seeds: Sequence[int] = (0, 1, 2)) -> tuple[CellRecord, ...]:
    """All suites and variants; seed k takes 1 + k / 100 times as long."""
    return tuple(
        record(cell(variant, suite=suite, seed=seed), scale=1 + seed / 100)
        for suite in SUITES
        for seed in seeds
        for variant in Variant
    )


def own_steps(of: Cell) -> tuple[StepRecord, ...]:
    """Losses of a cell in a matrix of these: apart from the reference's by 0.001 and one more for every seed."""
    shift = 0.0 if of.variant is Variant.REFERENCE else 0.001 * (of.seed + 1)
    return steps(of, shift=shift, distance=shift / 10)


def results(records: Iterable[CellRecord]) -> Results:
    """A matrix of these as it is read."""
    known = {each.cell: each for each in records}
    return Results(manifest(known), known, {each: own_steps(each) for each in known})


def write(records: Iterable[CellRecord], folder: Path) -> None:
    """A finished matrix of `records` in `folder`."""
    records = tuple(records)
    for each in records:
        write_record(each, own_steps(each.cell), folder)
    write_manifest(manifest(each.cell for each in records), folder)
