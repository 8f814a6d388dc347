"""The quality gates: a suite whose cells do not pass all of them proves nothing (ECRL, section 5.9)."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from kintsugi.matrix.cell import Cell, Part, Suite, Variant
from kintsugi.matrix.record import CellRecord
from kintsugi.matrix.results import Results
from kintsugi.runtime.supervising.supervision import EndReason

CLOCK_TOLERANCE = 0.01
"""By what share of the wall time its parts may come out too long: they are read from several processes' clocks."""
RESTARTING = (Variant.BLOCKING, Variant.OVERLAPPED)
COMPARED = (Variant.REFERENCE, *RESTARTING)
"""Without one of these a suite proves nothing."""

Check = Callable[[Results, CellRecord], Iterator[str]]


@dataclass(frozen=True, slots=True)
class Gate:
    """One condition, and what is against it."""

    name: str
    faults: tuple[str, ...]

    @property
    def is_passed(self) -> bool:
        """Whether nothing is against it."""
        return not self.faults


@dataclass(frozen=True, slots=True)
class Acceptance:
    """All gates of one suite, or of the cells beside the matrix."""

    subject: str
    num_cells: int
    gates: tuple[Gate, ...]

    @property
    def is_accepted(self) -> bool:
        """Whether all gates are passed."""
        return all(gate.is_passed for gate in self.gates)


def acceptances(results: Results) -> tuple[Acceptance, ...]:
    """Of every suite, then of the sweep and of the elastic cells where there are any."""
    subjects: dict[tuple[Part, Suite | None], list[Cell]] = {}
    for entry in results.manifest.entries:
        cell = entry.cell
        subjects.setdefault((cell.part, cell.suite if cell.part is Part.MATRIX else None), []).append(cell)
    return tuple(
        Acceptance(suite.name if suite is not None else part.value, len(cells), _gates(results, cells))
        for (part, suite), cells in subjects.items()
    )


def _gates(results: Results, cells: list[Cell]) -> tuple[Gate, ...]:
    known = [results.records[cell] for cell in cells if cell in results.records]
    faults = {name: [f"{r.cell.name}: {fault}" for r in known for fault in check(results, r)] for name, check in CHECKS.items()}
    reasons = {entry.cell: entry.reason for entry in results.manifest.entries}
    missing = [cell for cell in cells if cell not in results.records]
    faults["steps complete"] += [
        f"{name}: was not asked for, and the suite is not accepted without it" for name in _left_out(cells)
    ]
    faults["artifacts"] += [f"{cell.name}: has no record {reasons[cell]}".rstrip() for cell in missing]
    return tuple(Gate(name, tuple(found)) for name, found in faults.items())


def _left_out(cells: list[Cell]) -> list[str]:
    """Names of the cells that a suite of the matrix lacks, seed by seed."""
    needed = (replace(cell, variant=variant).name for cell in cells if cell.part is Part.MATRIX for variant in COMPARED)
    own = {cell.name for cell in cells}
    return [name for name in dict.fromkeys(needed) if name not in own]


def _complete(_: Results, record: CellRecord) -> Iterator[str]:
    if record.committed_steps != record.num_steps:
        yield f"committed {record.committed_steps} of {record.num_steps} steps"


def _audited(_: Results, record: CellRecord) -> Iterator[str]:
    verdict = record.audit
    if verdict.has_passed:
        return
    counts = f"{verdict.duplicates} duplicates, {verdict.missing} missing, {verdict.extra} extra"
    yield "; ".join([counts if verdict.is_complete else f"incomplete, {counts}", *verdict.problems])


def _artifacts(results: Results, record: CellRecord) -> Iterator[str]:
    """One line per committed step, in order, of a whole global batch, from all ranks."""
    steps = results.steps[record.cell]
    if [step.global_step for step in steps] != list(range(record.committed_steps)):
        yield f"steps.csv does not hold steps 0 to {record.committed_steps - 1} once each"
    for name, wrong in {
        "samples": sum(step.sample_ids_count != record.global_batch_size for step in steps),
        "ranks": sum(step.ranks != step.world_size for step in steps),
    }.items():
        if wrong:
            yield f"{wrong} steps with another number of {name} than they have to have"


def _consistent(_: Results, record: CellRecord) -> Iterator[str]:
    """Failures, restarts, checkpoints and times have to fit together."""
    if len(record.failures) != record.planned_failures:
        yield f"{len(record.failures)} of {record.planned_failures} failures struck"
    expected = len(record.failures) if record.cell.variant in RESTARTING else 0
    if record.num_restarts != expected:
        yield f"{record.num_restarts} restarts where {expected} were to come"
    if record.attempts and record.attempts[-1].reason is not EndReason.COMPLETED:
        yield f"its last attempt ended as {record.attempts[-1].reason}"
    strategy = record.checkpoints.strategy
    if record.cell.variant in RESTARTING and (strategy != record.cell.variant or not record.checkpoints.num_written):
        yield f"wrote {record.checkpoints.num_written} checkpoints, strategy {strategy}"
    if record.wall.rest_seconds < -CLOCK_TOLERANCE * record.wall.total_seconds:
        yield f"the parts of its wall time are {-record.wall.rest_seconds:.3f} s longer than all of it"


CHECKS: dict[str, Check] = {
    "steps complete": _complete,
    "audit": _audited,
    "artifacts": _artifacts,
    "consistent": _consistent,
}
"""The four conditions of section 5.9, in its order."""
