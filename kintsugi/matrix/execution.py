"""Runs one cell: supervises its job to the end, and makes its record from what the job left."""

import json
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from kintsugi.core.codec import dumps, load, loads
from kintsugi.core.errors import KintsugiError, WorkerError
from kintsugi.matrix.clock import accounts, step_seconds
from kintsugi.matrix.events import Event, Kind, read_events
from kintsugi.matrix.evidence import step_records, verdict
from kintsugi.matrix.outcome import OUTCOME, PARAMETERS, Outcome
from kintsugi.matrix.quality import quality_of
from kintsugi.matrix.record import CellRecord, CheckpointTotals, Failure, Quality
from kintsugi.matrix.store import write_record
from kintsugi.matrix.watcher import EXIT_CODE
from kintsugi.matrix.workload import Orders, held_out, job_of, target_of
from kintsugi.runtime.checkpoints.advice import CheckpointRecord
from kintsugi.runtime.layout import CHECKPOINTS, RECORDS
from kintsugi.runtime.supervising.supervision import EndReason, SupervisorPolicy, SupervisorRecord, SupervisorState
from kintsugi.runtime.supervising.supervisor import Supervisor

ORDERS = "orders.json"
NO_CHECKPOINTS = "none"
"""Strategy of a cell that writes its last state alone."""
_CACHE_BYTES = 100_000_000
"""More than caches hold."""


class StoppedError(KintsugiError):
    """The user stopped the matrix; it goes on when it is started again."""

    code = "stopped"


@dataclass(frozen=True, slots=True)
class _Left:
    """What a job left in its folder."""

    supervised: SupervisorRecord
    events: tuple[Event, ...]
    checkpoints: tuple[CheckpointRecord, ...]
    outcome: Outcome
    began_at: float
    """On the clock of the events."""
    total_seconds: float


def execute(orders: Orders, matrix: Path) -> CellRecord:
    """Run a cell from nothing, and write its record; what an earlier try left is removed.

    Args:
        orders: for its processes.
        matrix: folder of the matrix.

    Raises:
        StoppedError: the user stopped it.
        WorkerError: the job did not come to its end.
    """
    run = Path(orders.run)
    shutil.rmtree(run, ignore_errors=True)
    run.mkdir(parents=True)
    (run / ORDERS).write_text(dumps(orders))
    left = _supervise(orders, run)
    record = _record(orders, left)
    steps = tuple(step_records(run, step_seconds(left.events)))
    shutil.rmtree(run / CHECKPOINTS, ignore_errors=True)
    (run / PARAMETERS).unlink()
    write_record(record, steps, matrix)
    return record


def _supervise(orders: Orders, run: Path) -> _Left:
    command = [sys.executable, "-m", "kintsugi.matrix.child", str(run / ORDERS)]
    policy = SupervisorPolicy(max_restarts=len(orders.strikes), pause_seconds=0.0)
    began = time.monotonic()
    supervised = Supervisor(command=command, run=run, policy=policy).supervise()
    total_seconds = time.monotonic() - began
    if supervised.attempts[-1].reason is EndReason.STOPPED:
        raise StoppedError("stopped", field="cell", value=orders.cell.name)
    if supervised.state is not SupervisorState.COMPLETED:
        raise WorkerError(f"{orders.cell.name}: {supervised.stopped_because}", field="cell", value=orders.cell.name)
    _require_own_failures(orders, supervised)
    return _Left(
        supervised=supervised,
        events=read_events(run),
        checkpoints=tuple(loads(CheckpointRecord, line) for line in (run / RECORDS).read_text().splitlines()),
        outcome=load(Outcome, run / OUTCOME),
        began_at=began,
        total_seconds=total_seconds,
    )


def _require_own_failures(orders: Orders, supervised: SupervisorRecord) -> None:
    """Require that no life of the job ended early but as the schedule says: its times would be those of another cell.

    Raises:
        WorkerError: with the one that did.
    """
    for attempt in supervised.attempts[:-1]:
        if attempt.exit_code != EXIT_CODE:
            how = attempt.signal or f"exit code {attempt.exit_code}"
            raise WorkerError(
                f"attempt {attempt.number} ended with {how}, which nobody asked for", field="cell", value=orders.cell.name
            )


def _record(orders: Orders, left: _Left) -> CellRecord:
    told = accounts(left.events, left.checkpoints, left.total_seconds, began_at=left.began_at)
    proven = verdict(Path(orders.run))
    global_batch_size = orders.model.microbatch_size * orders.model.num_microbatches
    held = {event.step for event in left.events if event.kind is Kind.STEP}
    return CellRecord(
        cell=orders.cell,
        world_sizes=told.world_sizes,
        global_batch_size=global_batch_size,
        num_steps=orders.model.num_steps,
        committed_steps=len(held),
        trained_samples=told.trained_steps * global_batch_size,
        wall=told.wall,
        checkpoints=_totals(orders, left.checkpoints),
        failures=_failures(left.events),
        planned_failures=len(orders.strikes),
        attempts=left.supervised.attempts,
        recovery_seconds=told.recovery_seconds,
        audit=proven,
        quality=_quality(orders),
        trace_every=orders.trace_every,
        settings=_settings(orders, left),
    )


def _quality(orders: Orders) -> Quality:
    """Of what the job trained, by this process, which needs no emulated device."""
    trained = torch.load(Path(orders.run) / PARAMETERS, weights_only=True)
    model = replace(orders.model, device_seconds=0.0)
    job = job_of(model, orders.data, orders.cell.seed)
    return quality_of(job, held_out(model, orders.data), trained, target=target_of(model))


def _totals(orders: Orders, checkpoints: Sequence[CheckpointRecord]) -> CheckpointTotals:
    largest = max((record.part_bytes for record in checkpoints), default=0)
    return CheckpointTotals(
        strategy=orders.cell.variant.value if orders.writes_checkpoints else NO_CHECKPOINTS,
        num_written=len(checkpoints),
        state_bytes=max((record.num_bytes for record in checkpoints), default=0),
        snapshot_seconds=sum(record.snapshot_seconds for record in checkpoints),
        write_seconds=sum(record.write_seconds for record in checkpoints),
        backpressure_seconds=sum(record.backpressure_seconds for record in checkpoints),
        memory_copy_seconds=_copy_seconds(largest),
    )


def _copy_seconds(num_bytes: int) -> float:
    """Median time of one copy of so many bytes, into memory that was used before and is in no cache. Seconds.

    By one thread, as a worker's snapshot is; where workers copy at once, they share the memory that this has for itself.
    """
    repeats = max(3, _CACHE_BYTES // max(num_bytes, 1))
    sources = [np.ones(num_bytes, dtype=np.uint8) for _ in range(repeats)]
    targets = [np.ones(num_bytes, dtype=np.uint8) for _ in range(repeats)]
    seconds = []
    for source, target in zip(sources, targets, strict=True):
        began = time.perf_counter()
        np.copyto(target, source)
        seconds.append(time.perf_counter() - began)
    return float(np.median(seconds))


def _failures(events: Sequence[Event]) -> tuple[Failure, ...]:
    """Every strike that came: of the whole job, or of single workers."""
    found: list[Failure] = []
    for event in events:
        if event.kind is Kind.STRUCK:
            found.append(Failure(step=event.step or 0, worker="all", how=f"exit {EXIT_CODE}"))
        elif event.kind is Kind.INTERRUPTED:
            found += [Failure(step=event.step or 0, worker=worker, how="kill") for worker in event.lost]
    return tuple(found)


def _settings(orders: Orders, left: _Left) -> dict[str, str]:
    settings = {"model": json.dumps({name: getattr(orders.model, name) for name in orders.model.__slots__})}
    return {
        **settings,
        "strikes": ", ".join(map(str, orders.strikes)),
        "device_seconds": str(orders.model.device_seconds),
        "comes_back": str(orders.comes_back),
        "data_sha256": orders.data.sha256,
        "state_sha256": left.outcome.digest,
        "has_equal_replicas": str(left.outcome.has_equal_replicas),
    }
