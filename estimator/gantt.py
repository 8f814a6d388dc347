"""The picture of a step: who computes which micro-batch when, as an SVG that stands on its own.

Colours are those of Okabe and Ito, which people with any kind of colour vision tell apart; work that was rerouted is
striped too, so that no meaning rests on colour alone. The file follows the reader's light or dark mode.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from estimator.timeline import Bar, BarKind, Panel, Row

LEGEND = (
    (BarKind.FORWARD, "forward"),
    (BarKind.BACKWARD, "backward"),
    (BarKind.BACKWARD_WEIGHT, "its weight part, put off"),
    (BarKind.REROUTED_FORWARD, "forward, for a lost worker"),
    (BarKind.REROUTED_BACKWARD, "backward, for a lost worker"),
    (BarKind.REROUTED_BACKWARD_WEIGHT, "weight part, for a lost worker"),
    (BarKind.REDUCE, "gradients reduced"),
    (BarKind.UPDATE, "optimizer"),
)
"""Kinds of bars and what the legend calls them, in its order."""

# Lengths in pixels, as the SVG's user units are shown: of the picture and its margins, and of what stands in it from above.
WIDTH = 960
LEFT = 132
RIGHT = 24
ROW = 30
BAR = 24
GROUP_GAP = 10
TITLE = 44
AXIS = 34
LEGEND_ROW = 30
NARROWEST_NUMBERED = 13

STYLE = """
text { font: 12px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328 }
.background { fill: #ffffff } .lane { fill: #f3f5f7 } .grid { stroke: #d5dae0 }
.title { font-size: 15px; font-weight: 600 } .muted { fill: #59636e }
.number { font-size: 11px; fill: #111111; text-anchor: middle }
.lost { fill: #b42318; font-weight: 600 } .gone { fill: none; stroke: #b42318; stroke-dasharray: 5 4 }
.forward { fill: #56b4e9 } .backward { fill: #e69f00 } .weight { fill: #f0e442 } .reduce { fill: #009e73 } .update { fill: #9aa1a9 }
.outline { fill: none; stroke: #1f2328; stroke-width: 1.4 } .stripe { stroke: #1f2328; stroke-width: 1.5; opacity: 0.35 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .background { fill: #0d1117 } .lane { fill: #171d25 } .grid { stroke: #303842 }
  .muted { fill: #9198a1 } .number { fill: #111111 } .lost { fill: #ff8f85 } .gone { stroke: #ff8f85 }
  .outline { stroke: #f0f3f6 }
}
"""


@dataclass(frozen=True, slots=True)
class _Scale:
    """Seconds to horizontal pixels, the same in all panels."""

    end_seconds: float

    def x(self, seconds: float) -> float:
        return LEFT + seconds / self.end_seconds * (WIDTH - LEFT - RIGHT)

    def ticks(self) -> tuple[float, ...]:
        """Four to ten round times from zero."""
        raw = self.end_seconds / 8
        magnitude = 10.0 ** math.floor(math.log10(raw))
        step = next(magnitude * factor for factor in (1, 2, 5, 10) if magnitude * factor >= raw)
        return tuple(index * step for index in range(int(self.end_seconds / step * (1 + 1e-9)) + 1))


def to_svg(panels: Sequence[Panel], *, description: str) -> str:
    """Draw panels one above the other over a common scale of seconds, with one legend.

    Args:
        panels: at least one, with at least one bar among them.
        description: what the picture shows, for those who do not see it.
    """
    scale = _Scale(max(panel.end_seconds for panel in panels))
    top = 0.0
    parts: list[str] = []
    for each in panels:
        parts += _panel(each, scale, top)
        top += _height(each)
    kinds = {bar.kind for each in panels for bar in each.bars}
    parts += _legend(kinds, top)
    height = top + max(y for *_, y in _legend_places(kinds)) + BAR + 14
    return "\n".join((*_head(height, description), *parts, "</svg>", ""))


def _head(height: float, description: str) -> tuple[str, ...]:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" height="{height:g}" role="img">',
        f"<title>{escape(description)}</title>",
        f"<style>{STYLE}</style>",
        '<defs><pattern id="stripes" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<line class="stripe" x1="0" y1="0" x2="0" y2="6"/></pattern></defs>',
        f'<rect class="background" width="{WIDTH}" height="{height:g}" rx="8"/>',
    )


def _tops(rows: Sequence[Row]) -> list[float]:
    """Distance of every row from the top of its panel; groups stand a little apart."""
    tops, y = [], float(TITLE)
    for index, row in enumerate(rows):
        y += GROUP_GAP if index and row.group != rows[index - 1].group else 0
        tops.append(y)
        y += ROW
    return tops


def _height(each: Panel) -> float:
    return _tops(each.rows)[-1] + ROW + AXIS


def _panel(each: Panel, scale: _Scale, top: float) -> Iterator[str]:
    tops = [top + y for y in _tops(each.rows)]
    bottom = tops[-1] + ROW
    yield f'<text class="title" x="20" y="{top + 28:g}">{escape(each.title)}</text>'
    yield (f'<text class="muted" x="{WIDTH - RIGHT}" y="{top + 28:g}" text-anchor="end">step: {_seconds(each.end_seconds)}</text>')
    for row, y in zip(each.rows, tops, strict=True):
        yield from _lane(row, y)
    yield from _groups(each.rows, tops)
    yield from _axis(scale, top + TITLE - 4, bottom)
    y_of = {row.worker: y for row, y in zip(each.rows, tops, strict=True)}
    for bar in each.bars:
        yield from _bar(bar, scale, y_of[bar.worker])


def _lane(row: Row, y: float) -> Iterator[str]:
    middle = y + BAR / 2 + 4
    yield f'<rect class="lane" x="{LEFT}" y="{y:g}" width="{WIDTH - LEFT - RIGHT}" height="{BAR}"/>'
    colour = "lost" if row.is_lost else "worker"
    yield f'<text class="{colour}" x="{LEFT - 10}" y="{middle:g}" text-anchor="end">{escape(row.label)}</text>'
    if row.is_lost:
        yield f'<rect class="gone" x="{LEFT + 0.5}" y="{y + 0.5:g}" width="{WIDTH - LEFT - RIGHT - 1}" height="{BAR - 1}"/>'
        yield f'<text class="lost" x="{LEFT + 12}" y="{middle:g}">&#x2715; lost</text>'


def _groups(rows: Sequence[Row], tops: Sequence[float]) -> Iterator[str]:
    """The name of every group in the middle of its rows."""
    for group in dict.fromkeys(row.group for row in rows):
        own = [y for row, y in zip(rows, tops, strict=True) if row.group == group]
        yield f'<text class="muted" x="20" y="{(own[0] + own[-1] + BAR) / 2 + 4:g}">{escape(group)}</text>'


def _axis(scale: _Scale, top: float, bottom: float) -> Iterator[str]:
    for seconds in scale.ticks():
        x = scale.x(seconds)
        yield f'<line class="grid" x1="{x:.1f}" y1="{top:g}" x2="{x:.1f}" y2="{bottom:g}"/>'
        yield f'<text class="muted" x="{x:.1f}" y="{bottom + 16:g}" text-anchor="middle">{seconds:.4g} s</text>'


def _bar(bar: Bar, scale: _Scale, y: float) -> Iterator[str]:
    x, width = scale.x(bar.start_seconds), scale.x(bar.end_seconds) - scale.x(bar.start_seconds)
    yield from _box(bar.kind, x, y, width)
    if bar.microbatch is not None and width >= NARROWEST_NUMBERED:
        yield f'<text class="number" x="{x + width / 2:.1f}" y="{y + BAR / 2 + 4:g}">{bar.microbatch}</text>'


def _box(kind: BarKind, x: float, y: float, width: float) -> Iterator[str]:
    colour = kind.value.removeprefix("rerouted-")
    place = f'x="{x + 0.5:.1f}" y="{y:g}" width="{max(width - 1, 0.5):.1f}" height="{BAR}" rx="2"'
    yield f'<rect class="{colour}" {place}/>'
    if colour != kind.value:
        yield f'<rect fill="url(#stripes)" {place}/><rect class="outline" {place}/>'


def _legend(kinds: Collection[BarKind], top: float) -> Iterator[str]:
    """What the kinds of bars in the picture stand for."""
    for kind, words, x, y in _legend_places(kinds):
        yield from _box(kind, x, top + y, 24)
        yield f'<text x="{x + 31:g}" y="{top + y + 16:g}">{escape(words)}</text>'


def _legend_places(kinds: Collection[BarKind]) -> list[tuple[BarKind, str, float, float]]:
    """Kind, words and place of every entry; rows break at the picture's edge."""
    places, x, y = [], 20.0, 8.0
    for kind, words in LEGEND:
        if kind not in kinds:
            continue
        width = 31 + 6.1 * len(words) + 24
        if x + width > WIDTH:
            x, y = 20.0, y + LEGEND_ROW
        places.append((kind, words, x, y))
        x += width
    return places


def _seconds(value: float) -> str:
    return f"{value:.3g} s" if value >= 1 else f"{value * 1e3:.3g} ms"
