"""The sweep of checkpoint interval and writes in flight (ECRL, section 9): its runs by setting, and what overlapping gains."""

from collections import defaultdict
from dataclasses import replace
from statistics import fmean

from kintsugi.matrix.cell import Cell, Part, Suite, Variant
from kintsugi.matrix.record import CellRecord
from kintsugi.matrix.results import Results


def suites_of(results: Results) -> tuple[Suite, ...]:
    """In which something was swept."""
    return tuple(dict.fromkeys(record.cell.suite for record in results.of_part(Part.SWEEP)))


def settings_of(results: Results) -> dict[Cell, list[CellRecord]]:
    """Runs that restart from checkpoints by setting (a cell of the sweep with seed 0), sorted.

    Cells of the matrix in the suites that were swept count too, and where both ran one setting with one seed, the sweep's own.
    """
    swept = suites_of(results)
    found: dict[Cell, dict[int, CellRecord]] = defaultdict(dict)
    for part in (Part.MATRIX, Part.SWEEP):
        for record in results.of_part(part):
            if record.cell.suite in swept and record.cell.variant in (Variant.BLOCKING, Variant.OVERLAPPED):
                found[replace(record.cell, part=Part.SWEEP, seed=0)][record.cell.seed] = record
    return {setting: list(found[setting].values()) for setting in sorted(found)}


def gains(results: Results, suite: Suite) -> dict[tuple[int, int], float]:
    """Mean gain of overlapped over blocking with the same interval and seed, by interval and writes in flight.

    Blocking has at most one write in flight, so that all its runs of one interval are alike.
    """
    settings = {setting: runs for setting, runs in settings_of(results).items() if setting.suite == suite}
    blocking: dict[tuple[int, int], list[float]] = defaultdict(list)
    for setting, runs in settings.items():
        if setting.variant is Variant.BLOCKING:
            for record in runs:
                blocking[setting.every_steps, record.cell.seed].append(record.goodput)
    found = {}
    for setting, runs in settings.items():
        values = [
            record.goodput / fmean(blocking[setting.every_steps, record.cell.seed]) - 1
            for record in runs
            if setting.variant is Variant.OVERLAPPED and (setting.every_steps, record.cell.seed) in blocking
        ]
        if values:
            found[setting.every_steps, setting.max_in_flight] = fmean(values)
    return found


def stall_shares(results: Results, suite: Suite) -> dict[tuple[int, int], float]:
    """Mean share of the wall time that overlapped stalls, by interval and writes in flight."""
    return {
        (setting.every_steps, setting.max_in_flight): fmean(r.wall.stall_seconds / r.wall.total_seconds for r in runs)
        for setting, runs in settings_of(results).items()
        if setting.suite == suite and setting.variant is Variant.OVERLAPPED
    }
