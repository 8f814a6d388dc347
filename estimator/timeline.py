"""Who computes which micro-batch when: the bars and rows of a schedule's picture."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from estimator.costs import Costs
from estimator.program import PASSES, Action, ActionKind, compile_program
from estimator.replay import Replay, replay
from kintsugi.core.cluster import Cluster
from kintsugi.core.plan import Plan, Slot
from kintsugi.core.profile import Profile


class BarKind(StrEnum):
    """What a bar stands for."""

    FORWARD = "forward"
    BACKWARD = "backward"
    BACKWARD_WEIGHT = "weight"
    """The weight part of a split backward pass; BACKWARD is the input part then."""
    REROUTED_FORWARD = "rerouted-forward"
    REROUTED_BACKWARD = "rerouted-backward"
    REROUTED_BACKWARD_WEIGHT = "rerouted-weight"
    REDUCE = "reduce"
    UPDATE = "update"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """Something a worker does from start to end, in seconds from the start of the step."""

    worker: str
    kind: BarKind
    microbatch: int | None
    """Null for what is not about one micro-batch."""
    start_seconds: float
    end_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of a panel: a worker in its pipeline, or one that was lost."""

    worker: str
    group: str
    label: str
    is_lost: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One schedule: its rows from above, and the bars that lie in them."""

    title: str
    rows: tuple[Row, ...]
    bars: tuple[Bar, ...]

    @property
    def end_seconds(self) -> float:
        """End of the last bar."""
        return max((bar.end_seconds for bar in self.bars), default=0.0)


def timeline(plan: Plan, profile: Profile, cluster: Cluster) -> tuple[Bar, ...]:
    """What every worker does in one step of `plan`, as the estimator replays its program: worker by worker, in order."""
    costs = Costs(profile, cluster)
    return tuple(_bars(plan, replay(compile_program(plan, profile, cluster), costs)))


def panel(title: str, plan: Plan, profile: Profile, cluster: Cluster, *, lost: Sequence[str] = ()) -> Panel:
    """The schedule of `plan` as a panel; `lost` names the workers that its dead slots had, in order, and any more that are gone."""
    return Panel(title=title, rows=rows_of(plan, lost=lost), bars=timeline(plan, profile, cluster))


def rows_of(plan: Plan, *, lost: Sequence[str] = ()) -> tuple[Row, ...]:
    """The lines of a plan's schedule: its workers in slot order, dead slots among them, then whoever else is in `lost`."""
    names = iter(lost)
    rows = [
        Row(
            worker=stage.worker or (name := next(names, "?")),
            group=f"pipeline {p}",
            label=stage.worker or name,
            is_lost=stage.worker is None,
        )
        for p, pipeline in enumerate(plan.pipelines)
        for stage in pipeline.stages[: pipeline.num_workers]
    ]
    return (*rows, *(Row(worker=name, group="", label=name, is_lost=True) for name in names))


def _bars(plan: Plan, step: Replay) -> Iterator[Bar]:
    pipeline_of = {microbatch: index for index in range(plan.dp) for microbatch in plan.microbatches_of(index)}
    for worker, timings in step.timings.items():
        for timing in timings:
            action = timing.action
            is_pass = action.kind in PASSES
            is_own = not is_pass or Slot(pipeline=pipeline_of[action.microbatch], stage=action.stage) in plan.slots_of[worker]
            kind = _kind(action, is_own=is_own)
            start, end = timing.start_seconds, timing.end_seconds
            if kind is not None and end > start:
                number = action.microbatch if is_pass else None
                yield Bar(worker=worker, kind=kind, microbatch=number, start_seconds=start, end_seconds=end)


def _kind(action: Action, *, is_own: bool) -> BarKind | None:
    """The kind of bar of an action; None for messages, which are seen as the gaps they cause."""
    match action.kind:
        case ActionKind.FORWARD:
            return BarKind.FORWARD if is_own else BarKind.REROUTED_FORWARD
        case ActionKind.BACKWARD | ActionKind.BACKWARD_INPUT:
            return BarKind.BACKWARD if is_own else BarKind.REROUTED_BACKWARD
        case ActionKind.BACKWARD_WEIGHT:
            return BarKind.BACKWARD_WEIGHT if is_own else BarKind.REROUTED_BACKWARD_WEIGHT
        case ActionKind.REDUCE:
            return BarKind.REDUCE
        case ActionKind.APPLY:
            return BarKind.UPDATE
        case _:
            return None
