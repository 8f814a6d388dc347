"""The matrix that is run: data sets, models, failure schedules, and the cells that they make."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kintsugi.core import checks
from kintsugi.core.errors import InvalidInputError
from kintsugi.matrix.cell import Cell, Part, Suite, Variant
from kintsugi.matrix.data import DIGITS, TEXT
from kintsugi.matrix.workload import WORLD_SIZE, Model, Schedule

MOST_SEEDS = 1_000

BASE = Schedule(name="base", at=(0.25, 0.75))
"""After 400 and 1,200 of the paper's 1,600 steps (ECRL, section 5.3)."""
LATE = Schedule(name="late", at=(0.5, 0.875))
"""After 800 and 1,400."""
SHRINKING = Schedule(name="shrinking", at=(0.25, 0.75), comes_back=False)
"""Workers that fail do not come back: four, then three, then two."""

MODELS = (
    Model(name="resnet6", data_set=DIGITS, num_blocks=2, width=32, microbatch_size=2, num_kept=250),
    Model(name="resnet10", data_set=DIGITS, num_blocks=4, width=32, microbatch_size=2, num_kept=125),
    Model(name="decoder2", data_set=TEXT, num_blocks=2, width=64, microbatch_size=1, num_kept=64),
    Model(name="decoder4", data_set=TEXT, num_blocks=4, width=64, microbatch_size=1, num_kept=37),
)
"""States of about 80 MB each, so that what blocks for checkpoints takes about a tenth of the wall time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """What a matrix consists of."""

    models: tuple[Model, ...] = MODELS
    schedules: tuple[Schedule, ...] = (BASE, LATE)
    elastic: tuple[Schedule, ...] = (SHRINKING,)
    """Beside the matrix: the job goes on with fewer workers (N to M)."""
    elastic_variants: tuple[Variant, ...] = (Variant.OVERLAPPED, Variant.MEMORY)
    seeds: tuple[int, ...] = (0, 1, 2)
    max_in_flight: int = 4
    sweep_models: tuple[str, ...] = ("resnet6", "decoder4")
    sweep_every_ratios: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)
    """Checkpoint intervals of the sweep, as shares of the model's own."""
    sweep_in_flight: tuple[int, ...] = (1, 2, 4)
    world_size: int = WORLD_SIZE

    def __post_init__(self) -> None:
        checks.not_empty("seeds", self.seeds)
        checks.unique("models", [model.name for model in self.models])

    @property
    def without_seeds(self) -> "Matrix":
        """The same for comparison, whatever its seeds."""
        return replace(self, seeds=(0,))

    def model(self, suite: Suite) -> Model:
        """The model of a suite."""
        return next(model for model in self.models if model.name == suite.model)

    def schedule(self, suite: Suite) -> Schedule:
        """The failure schedule of a suite."""
        return next(schedule for schedule in (*self.schedules, *self.elastic) if schedule.name == suite.schedule)

    def cells(self, *, sweep: bool = False) -> tuple[Cell, ...]:
        """All cells; those whose times are compared run one after the other, for machines are slower at some times."""
        rows = [(suite, seed) for suite in self._suites(self.schedules) for seed in self.seeds]
        own = [cell for index, row in enumerate(rows) for cell in self._row(*row, index)]
        elastic = [
            self._cell(suite, variant, seed, Part.ELASTIC)
            for suite in self._suites(self.elastic)
            for seed in self.seeds
            for variant in self.elastic_variants
        ]
        return (*own, *elastic, *(self._sweep() if sweep else ()))

    def strikes(self, cell: Cell) -> tuple[int, ...]:
        """The steps before which a cell is struck. At the same steps for all variants and intervals of a suite."""
        model = self.model(cell.suite)
        return () if cell.variant is Variant.REFERENCE else self.schedule(cell.suite).strikes(model)

    def _row(self, suite: Suite, seed: int, index: int) -> Iterator[Cell]:
        """Every row begins with another variant, so that a machine that grows slower or faster favours none."""
        first = index % len(Variant)
        for variant in (*Variant, *Variant)[first : first + len(Variant)]:
            yield self._cell(suite, variant, seed, Part.MATRIX)

    def _suites(self, schedules: Sequence[Schedule]) -> Iterator[Suite]:
        for model in self.models:
            for schedule in schedules:
                yield Suite(data_set=model.data_set, model=model.name, schedule=schedule.name)

    def _cell(self, suite: Suite, variant: Variant, seed: int, part: Part) -> Cell:
        every = self.model(suite).every_steps
        return Cell(part=part, suite=suite, variant=variant, seed=seed, every_steps=every, max_in_flight=self.max_in_flight)

    def _sweep(self) -> Iterator[Cell]:
        """Intervals by writes in flight, on the first schedule; what blocks has nothing in flight."""
        for suite in self._suites(self.schedules[:1]):
            if suite.model in self.sweep_models:
                for ratio in self.sweep_every_ratios:
                    every = max(1, round(self.model(suite).every_steps * ratio))
                    yield from self._sweep_row(suite, every)

    def _sweep_row(self, suite: Suite, every: int) -> Iterator[Cell]:
        for seed in self.seeds[:1]:
            yield replace(self._cell(suite, Variant.BLOCKING, seed, Part.SWEEP), every_steps=every, max_in_flight=1)
            for in_flight in self.sweep_in_flight:
                yield replace(self._cell(suite, Variant.OVERLAPPED, seed, Part.SWEEP), every_steps=every, max_in_flight=in_flight)


def with_seeds(matrix: Matrix, num_seeds: int) -> Matrix:
    """The same with seeds 0 to `num_seeds` - 1.

    Raises:
        InvalidInputError: there must be one at least, and no more than anybody has the time for.
    """
    if not 1 <= num_seeds <= MOST_SEEDS:
        raise InvalidInputError(f"must be 1 to {MOST_SEEDS:,}", field="seeds", value=num_seeds)
    return replace(matrix, seeds=tuple(range(num_seeds)))
