"""What the journals of a cell prove: the verdict of the audit, and every committed step (ECRL, table 1)."""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from kintsugi.matrix.record import StepRecord, Verdict
from kintsugi.runtime.records.audit import audit, read_history
from kintsugi.runtime.records.history import AttemptRecord
from kintsugi.runtime.records.journal import Pass

_HASH_DIGITS = 16


def verdict(run: Path) -> Verdict:
    """What the audit of a cell's journals says."""
    report = audit(run)
    return Verdict(
        is_complete=report.is_complete,
        duplicates=sum(epoch.duplicates for epoch in report.epochs),
        missing=sum(epoch.missing for epoch in report.epochs),
        extra=sum(epoch.extra for epoch in report.epochs),
        problems=report.problems,
    )


def step_records(run: Path, seconds: Mapping[int, float]) -> Iterable[StepRecord]:
    """Every step that holds; `seconds` that each took, where that is known."""
    for step, attempt in sorted(read_history(run).held.items()):
        yield _step_record(step, attempt, seconds.get(step))


def _step_record(step: int, attempt: AttemptRecord, seconds: float | None) -> StepRecord:
    lines = [line for lines in attempt.passed.get(step, {}).values() for line in lines]
    passes = [Pass(*row) for line in lines for row in line["passes"]]
    last_layer = max(passed.layer_stop for passed in passes)
    counted = sorted((p for p in passes if p.layer_stop == last_layer), key=lambda passed: passed.offset)
    return StepRecord(
        global_step=step,
        epoch=lines[0]["epoch"],
        cursor_step=lines[0]["cursor"],
        world_size=next(iter(attempt.resumed.values()))["world_size"],
        ranks=len(attempt.steps[step]),
        sample_ids_count=sum(passed.count for passed in counted),
        sample_ids_hash=hashlib.sha256("".join(p.sample_hash for p in counted).encode()).hexdigest()[:_HASH_DIGITS],
        loss=float(attempt.line_of(step)["loss"]),
        seconds=seconds,
    )
