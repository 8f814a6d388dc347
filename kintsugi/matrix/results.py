"""Everything that is on record of a matrix, and runs of two variants side by side."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kintsugi.matrix import store
from kintsugi.matrix.cell import Cell, Part, Suite, Variant
from kintsugi.matrix.manifest import Manifest
from kintsugi.matrix.record import CellRecord, StepRecord

Pair = tuple[CellRecord, CellRecord]
"""Two cells of one suite and one seed."""
BySuite = Mapping[Suite, Sequence[Pair]]


@dataclass(frozen=True, slots=True)
class Results:
    """A matrix as far as it has run."""

    manifest: Manifest
    records: Mapping[Cell, CellRecord]
    """In the order of the manifest."""
    steps: Mapping[Cell, tuple[StepRecord, ...]]

    @classmethod
    def load(cls, matrix: Path) -> "Results":
        """Read all files of a matrix. O(steps of all cells).

        Raises:
            InvalidInputError: with the file and what is wrong in it.
        """
        manifest = store.read_manifest(matrix)
        cells = [entry.cell for entry in manifest.entries if store.has_record(entry.cell, matrix)]
        records = {cell: store.read_record(cell, matrix) for cell in cells}
        return cls(manifest, records, {cell: store.read_steps(cell, matrix) for cell in cells})

    @property
    def suites(self) -> tuple[Suite, ...]:
        """Of the matrix itself, in the order of the manifest."""
        return tuple(dict.fromkeys(entry.cell.suite for entry in self.manifest.entries if entry.cell.part is Part.MATRIX))

    @property
    def seeds(self) -> tuple[int, ...]:
        """Of the matrix itself, ascending."""
        return tuple(sorted({entry.cell.seed for entry in self.manifest.entries if entry.cell.part is Part.MATRIX}))

    def of_part(self, part: Part) -> tuple[CellRecord, ...]:
        """Records of the cells that are there for `part`."""
        return tuple(record for cell, record in self.records.items() if cell.part is part)

    def runs(self, suite: Suite, variant: Variant) -> dict[int, CellRecord]:
        """Records of the matrix itself, by seed."""
        own = (r for r in self.of_part(Part.MATRIX) if r.cell.suite == suite and r.cell.variant is variant)
        return {record.cell.seed: record for record in own}

    def all_runs(self, variant: Variant) -> list[list[CellRecord]]:
        """Records of a variant by suite; suites without any are left out. Shape [suites][seeds]."""
        found = (list(self.runs(suite, variant).values()) for suite in self.suites)
        return [group for group in found if group]

    def pairs(self, ours: Variant, theirs: Variant) -> dict[Suite, list[Pair]]:
        """Both variants side by side, seed by seed; suites without a pair are left out."""
        found: dict[Suite, list[Pair]] = {}
        for suite in self.suites:
            mine, others = self.runs(suite, ours), self.runs(suite, theirs)
            both = [(mine[seed], others[seed]) for seed in sorted(mine.keys() & others.keys())]
            if both:
                found[suite] = both
        return found

    def reference_of(self, cell: Cell) -> Cell | None:
        """The run without failures that a cell's losses are compared with; of another failure schedule where its own has none."""
        same = [
            other
            for other in self.records
            if other.variant is Variant.REFERENCE
            and other.seed == cell.seed
            and (other.suite.data_set, other.suite.model) == (cell.suite.data_set, cell.suite.model)
        ]
        return min(same, key=lambda other: (other.suite != cell.suite, other.part is not Part.MATRIX), default=None)


Measure = Callable[[CellRecord, CellRecord], float]


def measured(pairs: BySuite, measure: Measure) -> list[list[float]]:
    """A measure of every pair. Shape [suites][seeds]."""
    return [[measure(mine, other) for mine, other in group] for group in pairs.values()]
