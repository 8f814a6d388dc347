"""The schedules before and after a decision, as data for the chart and as a picture for those without scripts."""

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from api.dashboard.formats import words
from api.dashboard.scene import Scene
from api.storage.recent import Recent
from estimator.costs import Costs
from estimator.gantt import to_svg
from estimator.program import PASSES, SENDS, compile_program
from estimator.replay import Timing, replay
from estimator.timeline import Panel, panel, rows_of
from kintsugi.core.cluster import Cluster
from kintsugi.core.errors import NotFoundError
from kintsugi.core.plan import Plan

KINDS = ("F", "B", "I", "W", "REDUCE", "APPLY", "RECV_F", "RECV_B")
"""Kinds of bars; a bar names its kind by the index here. A receive is the time that its worker waits for the message."""
FULL_PICTURE_WORKERS = 64
"""Schedules of more workers have no picture: it would be too large to be of use."""

Bar = tuple[int, int, int, float, float, int]
"""Kind, micro-batch, stage (each -1 where there is none), start and end in seconds, whether the work is another slot's (0, 1)."""


KEPT_SCHEDULES = 16
_packed: Recent[tuple[str, str, int, str, Cluster, tuple[str, ...], tuple[str, ...]], "Packed"] = Recent(KEPT_SCHEDULES)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRow:
    """A worker's line: what it does, in order; a lost worker does nothing."""

    worker: str
    group: str
    is_lost: bool
    is_leaving: bool
    """Whether a lost worker still serves its state."""
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulePanel:
    """One plan's schedule."""

    title: str
    generation: int
    end_seconds: float
    rows: tuple[ScheduleRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleView:
    """The schedules before and after a decision; one alone where nothing ran before."""

    kinds: tuple[str, ...]
    panels: tuple[SchedulePanel, ...]


@dataclass(frozen=True, slots=True)
class Packed:
    """A text as it travels: compressed once, for all who ask."""

    content: bytes
    """By gzip."""

    @classmethod
    def of(cls, view: ScheduleView) -> "Packed":
        """The JSON of a view."""
        return cls(gzip.compress(json.dumps(asdict(view), separators=(",", ":")).encode(), compresslevel=1, mtime=0))

    def text(self) -> bytes:
        """As it was before."""
        return gzip.decompress(self.content)


def packed_schedule(scene: Scene) -> Packed:
    """`schedule_of` as JSON, kept for those who look at the same decision again while nothing has happened since."""
    decision = (scene.summary.id, scene.summary.created_at, scene.generation, scene.decided_at)
    key = (*decision, scene.cluster, scene.alive, scene.leaving)
    packed = _packed.get(key)
    if packed is None:
        packed = Packed.of(schedule_of(scene))
        _packed.put(key, packed)
    return packed


def schedule_of(scene: Scene) -> ScheduleView:
    """The chart's data. O(A log A) for A actions."""
    return ScheduleView(kinds=KINDS, panels=tuple(_panel(title, plan, scene, lost) for title, plan, lost in _plans(scene)))


def has_picture(scene: Scene) -> bool:
    """Whether the schedules can be had as a picture."""
    return len(scene.decision.plan.workers) <= FULL_PICTURE_WORKERS


def picture_of(scene: Scene) -> str:
    """The same schedules as an SVG file, without zoom and messages.

    Raises:
        NotFoundError: it would hold too many workers.
    """
    if not has_picture(scene):
        workers = len(scene.decision.plan.workers)
        raise NotFoundError(
            f"a picture holds at most {FULL_PICTURE_WORKERS} workers; the chart holds all", field="job", value=workers
        )
    panels = [_picture(title, plan, scene, lost) for title, plan, lost in _plans(scene)]
    return to_svg(panels, description=f"Schedules of job {scene.summary.id}")


def _plans(scene: Scene) -> Iterator[tuple[str, Plan, Sequence[str]]]:
    """Title, plan and names of the lost, before and after."""
    after = scene.decision.plan
    if scene.before is not None:
        yield (
            f"Before: generation {scene.before.generation}, {words(scene.before.policy)}",
            scene.before,
            _dead(scene, scene.before),
        )
    when = "After" if scene.before is not None else "Now"
    yield f"{when}: generation {after.generation}, {words(after.policy)}", after, _names(scene)


def _names(scene: Scene) -> Sequence[str]:
    """Workers of the dead slots in order, then those that the plan before had and that are gone."""
    dead = _dead(scene, scene.decision.plan)
    before = () if scene.before is None else scene.before.workers
    alive = {*scene.alive, *dead, *scene.decision.plan.workers}
    return [*dead, *(worker for worker in before if worker not in alive)]


def _dead(scene: Scene, plan: Plan) -> list[str]:
    return [scene.buried.get(slot, "lost") for slot in plan.dead_slots]


def _picture(title: str, plan: Plan, scene: Scene, lost: Sequence[str]) -> Panel:
    return panel(title, plan, scene.profile, scene.cluster, lost=lost)


def _panel(title: str, plan: Plan, scene: Scene, lost: Sequence[str]) -> SchedulePanel:
    step = replay(compile_program(plan, scene.profile, scene.cluster), Costs(scene.profile, scene.cluster))
    own = _owners(plan)
    rows = (
        ScheduleRow(
            worker=row.worker,
            group=row.group,
            is_lost=row.is_lost,
            is_leaving=row.is_lost and row.worker in scene.leaving,
            bars=() if row.is_lost else tuple(_bars(step.timings[row.worker], own[row.worker])),
        )
        for row in rows_of(plan, lost=lost)
    )
    return SchedulePanel(title=title, generation=plan.generation, end_seconds=step.iteration_seconds, rows=tuple(rows))


def _owners(plan: Plan) -> dict[str, frozenset[tuple[int, int]]]:
    """Micro-batch and stage of every pass that is a worker's own."""
    return {
        worker: frozenset((m, slot.stage) for slot in slots for m in plan.microbatches_of(slot.pipeline))
        for worker, slots in plan.slots_of.items()
    }


def _bars(timings: Sequence[Timing], own: frozenset[tuple[int, int]]) -> Iterator[Bar]:
    for timing in timings:
        action, start, end = timing.action, timing.start_seconds, timing.end_seconds
        if action.kind not in SENDS and end > start:
            is_foreign = action.kind in PASSES and (action.microbatch, action.stage) not in own
            yield KINDS.index(action.kind.value), action.microbatch, action.stage, _kept(start), _kept(end), int(is_foreign)


def _kept(value: float) -> float:
    """A time to the nanosecond."""
    return round(value, 9)
