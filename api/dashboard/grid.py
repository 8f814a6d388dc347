"""The DP x PP grid as it is drawn: who holds which slot, and what became of it."""

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import accumulate, pairwise

from api.dashboard.formats import count, layers, size
from api.dashboard.scene import Scene
from kintsugi.core.cluster import Cluster
from kintsugi.core.decision import CheckpointRead, Transfer
from kintsugi.core.plan import Pipeline, Plan, Policy, Slot, Stage

MANY_WORKERS = 48
"""Above this, slots are drawn with less in them."""
COLUMNS_PER_STAGE = 12
"""Of the table, for the longest pipeline: how finely widths are told apart."""
WIDTHS = ((4, "few"), (8, "some"), (16, "many"))
"""Most stages of a pipeline, and the name of the width that a grid of so many needs."""


class SlotState(StrEnum):
    """What a slot is in the picture; each has a letter, a pattern and a colour."""

    STEADY = "steady"
    HELPING = "helping"
    """Computes micro-batches that a dead slot gave away, beside its own."""
    MOVING = "moving"
    """Its worker got other layers than it had: their state moves to it."""
    MENDED = "mended"
    """Dead, and its micro-batches go to others."""
    LEAVING = "leaving"
    """Its worker was asked to leave: it takes no part any more, and others can fetch its state still."""
    LOST = "lost"
    """Its worker is gone and no plan answers that."""
    SPARE = "spare"
    """No slot: a living worker that the plan does not use."""
    GONE = "gone"
    """No slot: a lost worker that the plan does without."""


LEGEND = (
    (SlotState.STEADY, "", "as before"),
    (SlotState.MENDED, "✕", "dead, its work rerouted"),
    (SlotState.HELPING, "+n", "takes n micro-batches of dead slots"),
    (SlotState.MOVING, "→", "new layers, state moves there"),
    (SlotState.SPARE, "S", "spare"),
    (SlotState.GONE, "✕", "lost, the plan does without"),
    (SlotState.LEAVING, "L", "leaving, still serves its state"),
    (SlotState.LOST, "!", "lost, no plan yet"),
)
MEANING_AT_FIRST = "in use"
"""Of what is steady in a first plan, before which there was nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One slot, or one worker beside the grid."""

    state: SlotState
    worker: str | None
    mark: str
    """One or two characters that say the state without colour."""
    layers: str
    """Counted from 0; empty beside the grid."""
    detail: str
    """Everything about the slot in one sentence or more."""
    span: int = 1
    """Columns of the table that it is wide."""
    pace: str = ""
    """Speed of a slow worker against the profile's, such as half of it; empty for others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A pipeline."""

    number: int
    num_microbatches: int
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The whole picture."""

    rows: tuple[Row, ...]
    spares: tuple[Cell, ...]
    leaving: tuple[Cell, ...]
    """Leaving workers that no slot shows."""
    gone: tuple[Cell, ...]
    """Lost workers that no slot shows."""
    width: str
    is_dense: bool
    is_first: bool
    """Whether no plan ran before."""

    @property
    def legend(self) -> tuple[tuple[SlotState, str, str], ...]:
        """The states in the picture, with their marks and meanings."""
        seen = {cell.state for row in self.rows for cell in row.cells} | {
            cell.state for cell in (*self.spares, *self.leaving, *self.gone)
        }
        return tuple((state, mark, self._meaning(state, meaning)) for state, mark, meaning in LEGEND if state in seen)

    def _meaning(self, state: SlotState, meaning: str) -> str:
        return MEANING_AT_FIRST if self.is_first and state is SlotState.STEADY else meaning


def grid_of(scene: Scene) -> Grid:
    """The grid of a scene's plan. O(S + R) for S slots and R routes and transfers."""
    return _Drawing(scene).grid()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seat:
    """A slot with what it holds, and how wide it is drawn."""

    slot: Slot
    stage: Stage
    span: int

    @property
    def place(self) -> str:
        """Where it is, as a sentence."""
        return f"Pipeline {self.slot.pipeline}, stage {self.slot.stage}, layers {layers(self.stage)}."


class _Drawing:
    """Looks at a scene's plan from everywhere that cells are about."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._plan: Plan = scene.decision.plan
        self._cluster: Cluster = scene.cluster
        self._alive = set(scene.alive)
        self._peaks = {price.worker: price.peak_memory_bytes for price in scene.decision.estimate.stages}
        self._given = Counter((route.worker, route.pipeline, route.stage) for route in self._plan.routes)

    def grid(self) -> Grid:
        plan = self._plan
        idle = {worker.worker: worker.reason for worker in plan.idle_workers}
        shown = {*plan.workers, *self._scene.buried.values()}
        return Grid(
            rows=tuple(self._row(index) for index in range(plan.dp)),
            spares=tuple(
                self._beside(worker, SlotState.SPARE, "S", reason) for worker, reason in idle.items() if worker in self._alive
            ),
            leaving=tuple(
                self._beside(worker, SlotState.LEAVING, "L", "leaving; it still serves its state, and the plan does without it")
                for worker in self._scene.leaving
                if worker not in shown
            ),
            gone=tuple(
                self._beside(worker, SlotState.GONE, "✕", "lost; the plan does without it")
                for worker in self._scene.gone
                if worker not in shown
            ),
            width=next((name for most, name in WIDTHS if self._longest <= most), "lots"),
            is_dense=len(plan.workers) > MANY_WORKERS,
            is_first=self._scene.before is None,
        )

    def _row(self, index: int) -> Row:
        pipeline = self._plan.pipelines[index]
        spans = _spans(pipeline, COLUMNS_PER_STAGE * self._longest)
        cells = tuple(
            self._cell(_Seat(slot=Slot(pipeline=index, stage=number), stage=stage, span=span))
            for number, (stage, span) in enumerate(zip(pipeline.stages, spans, strict=True))
        )
        return Row(number=index, num_microbatches=pipeline.num_microbatches, cells=cells)

    def _cell(self, seat: _Seat) -> Cell:
        worker = seat.stage.worker
        if worker is None:
            return self._dead(seat)
        state, mark, note = self._state(worker)
        home = self._cluster.by_id.get(worker)
        speed = 1.0 if home is None else home.speed_ratio
        note_on_speed = "" if speed == 1.0 else f"Runs at {speed:g} times the profile's speed."
        head = f"{worker}." if home is None else f"{worker} on {home.host}."
        return Cell(
            state=state,
            worker=worker,
            mark=mark,
            layers=layers(seat.stage),
            span=seat.span,
            detail=" ".join(filter(None, [head, seat.place, note, self._memory(worker), note_on_speed])),
            pace=_pace(speed),
        )

    def _state(self, worker: str) -> tuple[SlotState, str, str]:
        """State, mark and a sentence about a worker that holds a slot."""
        if worker in self._scene.leaving:
            return SlotState.LEAVING, "L", "Leaving, and no plan answers that yet."
        if worker not in self._alive:
            return SlotState.LOST, "!", "Lost, and no plan answers that yet."
        if taken := self._taken.get(worker, 0):
            return SlotState.HELPING, f"+{taken}", f"Takes {count(taken, 'micro-batch')} of dead slots beside its own."
        if worker in self._moved:
            return SlotState.MOVING, "→", self._arrival(worker)
        return SlotState.STEADY, "", ""

    def _dead(self, seat: _Seat) -> Cell:
        slot, name = seat.slot, self._scene.buried.get(seat.slot)
        takers = {worker: given for (worker, p, s), given in self._given.items() if (p, s) == (slot.pipeline, slot.stage)}
        shares = ", ".join(f"{worker} takes {given}" for worker, given in takers.items())
        leaves = name in self._scene.leaving
        head = "" if name is None else f"{name} is leaving and still serves its state. " if leaves else f"{name} is lost. "
        return Cell(
            state=SlotState.LEAVING if leaves else SlotState.MENDED,
            worker=name,
            mark="L" if leaves else "✕",
            layers=layers(seat.stage),
            span=seat.span,
            detail=f"{head}{seat.place} Its micro-batches are rerouted: {shares}.",
        )

    def _beside(self, worker: str, state: SlotState, mark: str, reason: str) -> Cell:
        home = self._cluster.by_id.get(worker)
        where = "" if home is None else f" on {home.host}"
        return Cell(
            state=state,
            worker=worker,
            mark=mark,
            layers="",
            detail=f"{worker}{where}: {reason}.",
            pace="" if home is None else _pace(home.speed_ratio),
        )

    def _arrival(self, worker: str) -> str:
        if self._plan.policy is Policy.CHECKPOINT_RESTART:
            return "New layers, whose state comes from the checkpoint."
        num_bytes = self._bytes_to[worker]
        is_there = self._scene.summary.applied_generation >= self._scene.generation
        verb = "moved" if is_there else "moves"
        return f"New layers: {size(num_bytes)} of state {verb} here." if num_bytes else "New layers, whose state it held already."

    def _memory(self, worker: str) -> str:
        limit = self._cluster.by_id[worker].memory_bytes if worker in self._cluster.by_id else None
        total = limit or self._scene.profile.device.memory_bytes
        peak = self._peaks.get(worker)
        return "" if peak is None else f"Peak memory {size(peak)} of {size(total)}."

    @cached_property
    def _longest(self) -> int:
        """Stages of the longest pipeline."""
        return max(len(pipeline.stages) for pipeline in self._plan.pipelines)

    @cached_property
    def _taken(self) -> Counter[str]:
        """Micro-batches of dead slots that each worker computes."""
        return Counter(route.worker for route in self._plan.routes)

    @cached_property
    def _bytes_to(self) -> Counter[str]:
        result: Counter[str] = Counter()
        migration = self._scene.decision.migration
        arrivals: tuple[Transfer | CheckpointRead, ...] = (*migration.transfers, *migration.from_checkpoint)
        for arrival in arrivals:
            result[arrival.target] += arrival.num_bytes
        return result

    @cached_property
    def _moved(self) -> frozenset[str]:
        """Workers that hold other layers than before, or get state."""
        before = self._scene.before
        if before is None:
            return frozenset()
        old = before.layers_of
        return frozenset(worker for worker, layers in self._plan.layers_of.items() if not set(layers) <= set(old.get(worker, ())))


def _pace(speed_ratio: float) -> str:
    return f"{speed_ratio:g}\N{MULTIPLICATION SIGN}" if speed_ratio < 1.0 else ""


def _spans(pipeline: Pipeline, num_columns: int) -> list[int]:
    """Columns of each stage, `num_columns` together: a third shared out by layers, the others equally, so that none is narrow."""
    num_stages, num_layers = len(pipeline.stages), pipeline.num_layers
    shares = ((2 / num_stages + len(stage.layers) / num_layers) / 3 for stage in pipeline.stages)
    stops = [0, *(round(share * num_columns) for share in accumulate(shares))]
    return [stop - start for start, stop in pairwise(stops)]
