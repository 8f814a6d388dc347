"""Where things lie in the history's pictures: numbers for SVG, computed here so that templates only place them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from api.dashboard.formats import seconds, signed_percent
from api.dashboard.past import Chapter, Phase

WIDTH = 560.0
LEFT, RIGHT = 64.0, 16.0
TOP, BOTTOM = 24.0, 34.0
HALF_LABEL = 36.0
"""Half the width of the longest label of a tick, `16 min 40 s`."""
PLOT_HEIGHT = 180.0
LANE, LANE_BAR = 34.0, 18.0
NARROWEST_NAMED = 60.0
LABEL_ABOVE, LABEL_BELOW = 10.0, 18.0
"""From the middle of a mark to the foot of its label."""
ROUNDING = 1e-9
"""So much above a round value counts as that value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A line of a grid, with its label."""

    at: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One generation in the chart of step times; heights in pixels from above."""

    generation: int
    x: float
    estimated: float
    measured: float | None
    difference: str
    """Measured against estimated; empty where there is no room for it."""
    label: float
    """Height of the difference: beyond the measured step as seen from the estimated one, where it covers neither."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepChart:
    """Estimated against measured step time, by generation."""

    width: float
    height: float
    ticks: tuple[Tick, ...]
    points: tuple[Point, ...]
    half: float
    """Half the width of a mark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A phase in the chart of recoveries."""

    phase: Phase
    number: int
    """From 1; drawn where the name has no room."""
    x: float
    width: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One recovery."""

    chapter: Chapter
    y: float
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryChart:
    """Phases of all recoveries on one scale of time."""

    width: float
    height: float
    ticks: tuple[Tick, ...]
    lanes: tuple[Lane, ...]


def step_chart(chapters: Sequence[Chapter]) -> StepChart:
    """The chart of step times, earliest generation left; the scale begins at 0."""
    ordered = sorted(chapters, key=lambda chapter: chapter.facts.generation)
    top = max([chapter.facts.iteration_seconds for chapter in ordered] + [c.measured_seconds or 0.0 for c in ordered])
    values = round_values(top)
    scale = PLOT_HEIGHT / max(values[-1], top)

    def y(value: float) -> float:
        return TOP + PLOT_HEIGHT - value * scale

    pitch = (WIDTH - LEFT - RIGHT) / len(ordered)
    points = (
        Point(
            generation=chapter.facts.generation,
            x=LEFT + pitch * (index + 0.5),
            estimated=y(chapter.facts.iteration_seconds),
            measured=None if chapter.measured_seconds is None else y(chapter.measured_seconds),
            difference=_difference(chapter) if pitch >= NARROWEST_NAMED else "",
            label=_label(y(chapter.facts.iteration_seconds), y(chapter.measured_seconds or 0.0)),
        )
        for index, chapter in enumerate(ordered)
    )
    return StepChart(
        width=WIDTH,
        height=TOP + PLOT_HEIGHT + BOTTOM,
        ticks=tuple(Tick(at=y(value), label=seconds(value)) for value in values),
        points=tuple(points),
        half=min(18.0, pitch * 0.35),
    )


def _difference(chapter: Chapter) -> str:
    return "" if chapter.excess_ratio is None else signed_percent(chapter.excess_ratio)


def _label(estimated: float, measured: float) -> float:
    below = measured + LABEL_BELOW
    return below if measured > estimated and below <= TOP + PLOT_HEIGHT else measured - LABEL_ABOVE


def recovery_chart(chapters: Sequence[Chapter]) -> RecoveryChart | None:
    """The chart of recoveries, latest above; null where none was reported."""
    told = [chapter for chapter in chapters if chapter.recovery_seconds]
    if not told:
        return None
    longest = max(chapter.recovery_seconds or 0.0 for chapter in told)
    scale = (WIDTH - LEFT - HALF_LABEL) / longest
    lanes = (_lane(chapter, TOP + LANE * index, scale) for index, chapter in enumerate(told))
    ticks = (Tick(at=LEFT + value * scale, label=seconds(value)) for value in round_values(longest) if value <= longest)
    return RecoveryChart(width=WIDTH, height=TOP + LANE * len(told) + BOTTOM, ticks=tuple(ticks), lanes=tuple(lanes))


def round_values(top: float, at_most: int = 5) -> tuple[float, ...]:
    """Round values from 0 to `top` or just above, at most `at_most` steps; 0 and 1 where nothing is above 0."""
    if top <= 0:
        return (0.0, 1.0)
    magnitude, enough = 10.0 ** math.floor(math.log10(top / at_most)), top * (1 - ROUNDING)
    step = next(magnitude * factor for factor in (1, 2, 5, 10) if magnitude * factor * at_most >= enough)
    last = next(index for index in range(1, at_most + 1) if step * index >= enough)
    return tuple(index * step for index in range(last + 1))


def _lane(chapter: Chapter, y: float, scale: float) -> Lane:
    segments = (
        Segment(
            phase=phase,
            number=number,
            x=LEFT + phase.start_seconds * scale,
            width=(phase.end_seconds - phase.start_seconds) * scale,
        )
        for number, phase in enumerate(chapter.phases, start=1)
    )
    return Lane(chapter=chapter, y=y, segments=tuple(segments))
