"""The pictures of a matrix, as PNG and SVG: what is gained, what it costs, and how far runs are from their references."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kintsugi.matrix import sweep
from kintsugi.matrix.cell import Suite, Variant
from kintsugi.matrix.comparisons import by_suite, difference, gain, loss
from kintsugi.matrix.cost_tables import PARTS
from kintsugi.matrix.divergence import Series, band, divergence
from kintsugi.matrix.results import Results
from kintsugi.reporting.intervals import Interval
from kintsugi.reporting.pictures import new_axes, pyplot, save

COLOURS = {
    Variant.REFERENCE: "#999999",
    Variant.BLOCKING: "#d55e00",
    Variant.OVERLAPPED: "#0072b2",
    Variant.MEMORY: "#009e73",
}
"""Of Okabe and Ito, which people with any kind of colour vision tell apart."""
STRUCK = (Variant.BLOCKING, Variant.OVERLAPPED, Variant.MEMORY)
PART_COLOURS = dict(
    zip(PARTS, ("#777777", "#009e73", "#56b4e9", "#0072b2", "#cc79a7", "#d55e00", "#e69f00", "#cccccc"), strict=True)
)
LINES = {Variant.BLOCKING: "-", Variant.OVERLAPPED: "--", Variant.MEMORY: ":"}
"""So that lines that lie on each other are told apart."""
_TIGHT = {"fontsize": "small", "columnspacing": 1.0, "handlelength": 1.4}
MARKERS = "os^vDPX*<>"
CAPTIONS = {
    "goodput": "Goodput by suite, the reference of the same seed being 1 (figure 2 of the paper).",
    "gain": "What overlapped gains over blocking in goodput (figure 3 of the paper).",
    "stall_gain": "Stall that overlapped saves against what it gains, by suite (figure 4 of the paper).",
    "wall_time": "Where the wall time went (equation 7 of the paper), means over seeds.",
    "failures": "Goodput lost to failures and to checkpoints, against the reference of the same seed.",
    "sweep": "Overlapped by checkpoint interval and writes in flight: share of the wall time stalled, and gain over blocking.",
    "loss_divergence": "Absolute difference of the loss to the reference by step; bands are all seeds.",
    "parameter_divergence": "L2 distance of the parameters to the reference's by step, over its norm; bands are all seeds.",
}
"""Of every figure, in the order in which the report shows them. Whiskers are 95 % confidence intervals, paired over seeds."""


def draw(results: Results, folder: Path) -> dict[str, tuple[Path, ...]]:
    """Write every figure that the records allow; what was written, by name, in the order of `CAPTIONS`.

    Raises:
        InvalidInputError: matplotlib is not installed.
    """
    plot = pyplot()
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {}
    try:
        for name in CAPTIONS:
            figure = _FIGURES[name](plot, results)
            if figure is not None:
                drawn[name] = tuple(save(figure, folder / name))
    finally:
        plot.close("all")
    return drawn


def _goodput(plot: Any, results: Results) -> Any:
    bars = {v: by_suite(results.pairs(v, Variant.REFERENCE), lambda mine, other: 1 + gain(mine, other)) for v in Variant}
    figure = _grouped(plot, results, bars, "goodput over reference")
    if figure is not None:
        figure.axes[0].axhline(1.0, color="black", linewidth=0.8)
        figure.axes[0].set_ylim(bottom=0.0)
    return figure


def _failures(plot: Any, results: Results) -> Any:
    bars = {v: by_suite(results.pairs(v, Variant.REFERENCE), loss) for v in STRUCK}
    return _grouped(plot, results, bars, "goodput lost, share of the reference's")


def _grouped(plot: Any, results: Results, bars: Mapping[Variant, Mapping[Suite, Interval]], y: str) -> Any:
    """One group of bars per suite, one bar per variant."""
    bars = {variant: own for variant, own in bars.items() if own}
    if not bars:
        return None
    suites = [suite for suite in results.suites if any(suite in own for own in bars.values())]
    figure, axes = new_axes(plot, "", y, size=(max(6.0, 1.25 * len(suites)), 4.5))
    width = 0.8 / len(bars)
    for index, (variant, own) in enumerate(bars.items()):
        places = [suites.index(suite) + (index - (len(bars) - 1) / 2) * width for suite in own]
        heights, margins = _ends(own.values())
        axes.bar(places, heights, width, yerr=margins, capsize=2, color=COLOURS[variant], label=variant.value)
    names = [suite.name for suite in suites]
    axes.set_xlim(-0.6, len(suites) - 0.4)
    axes.set_xticks(range(len(names)), names, rotation=20, ha="right", rotation_mode="anchor", fontsize="small")
    figure.legend(loc="outside upper center", ncols=len(bars))
    return figure


def _gain(plot: Any, results: Results) -> Any:
    gains = by_suite(results.pairs(Variant.OVERLAPPED, Variant.BLOCKING), gain)
    if not gains:
        return None
    ranked = sorted(gains, key=lambda suite: gains[suite].mean)
    figure, axes = new_axes(plot, "goodput gained by overlapped over blocking (%)", "")
    widths, margins = _ends((gains[suite] for suite in ranked), 100.0)
    axes.barh([suite.name for suite in ranked], widths, xerr=margins, capsize=3, color=COLOURS[Variant.OVERLAPPED])
    axes.axvline(0.0, color="black", linewidth=0.8)
    return figure


def _stall_gain(plot: Any, results: Results) -> Any:
    pairs = results.pairs(Variant.OVERLAPPED, Variant.BLOCKING)
    gains, stalls = by_suite(pairs, gain), by_suite(pairs, difference("stall_seconds"))
    if not gains:
        return None
    figure, axes = new_axes(plot, "stall saved (s)", "goodput gained (%)")
    models = sorted({suite.model for suite in gains})
    for suite, marker in zip(gains, MARKERS * len(gains), strict=False):
        (x,), x_margin = _ends([stalls[suite]], -1.0)
        (y,), y_margin = _ends([gains[suite]], 100.0)
        style = {"marker": marker, "capsize": 2, "linestyle": "none", "color": f"C{models.index(suite.model)}"}
        axes.errorbar([x], [y], xerr=x_margin, yerr=y_margin, label=suite.name, **style)
    axes.axhline(0.0, color="black", linewidth=0.8)
    figure.legend(loc="outside right upper", fontsize="small")
    return figure


def _wall_time(plot: Any, results: Results) -> Any:
    suites = _suites_with(results, tuple(Variant))
    if not suites:
        return None
    figure, panels = _panels(plot, suites, "wall time (s)", share_x=False)
    for suite, axes in panels.items():
        runs = {variant: list(results.runs(suite, variant).values()) for variant in reversed(Variant)}
        runs = {variant: own for variant, own in runs.items() if own}
        left = [0.0] * len(runs)
        for name, read in PARTS.items():
            widths = [max(sum(read(record.wall) for record in own) / len(own), 0.0) for own in runs.values()]
            axes.barh([variant.value for variant in runs], widths, left=left, color=PART_COLOURS[name], label=name)
            left = [before + width for before, width in zip(left, widths, strict=True)]
    _one_legend(figure, panels)
    return figure


def _sweep(plot: Any, results: Results) -> Any:
    suites = sweep.suites_of(results)
    if not suites:
        return None
    figure, grid = plot.subplots(len(suites), 2, figsize=(9.0, 3.6 * len(suites)), layout="constrained", squeeze=False)
    for row, suite in zip(grid, suites, strict=True):
        _heat_map(figure, row[0], sweep.stall_shares(results, suite), f"{suite.name}: stall (%)", "viridis_r")
        _heat_map(figure, row[1], sweep.gains(results, suite), f"{suite.name}: gain over blocking (%)", "viridis")
    return figure


def _heat_map(figure: Any, axes: Any, values: Mapping[tuple[int, int], float], title: str, colours: str) -> None:
    """Percentages by interval (across) and writes in flight (up)."""
    intervals = sorted({every for every, _ in values})
    flights = sorted({flight for _, flight in values})
    table = [[100.0 * values.get((every, flight), float("nan")) for every in intervals] for flight in flights]
    axes.set_title(title, fontsize="small")
    axes.set_xlabel("checkpoint every (steps)")
    axes.set_ylabel("writes in flight")
    if not values:
        return
    axes.set_xticks(range(len(intervals)), intervals)
    axes.set_yticks(range(len(flights)), flights)
    image = axes.imshow(table, cmap=colours, aspect="auto", origin="lower")
    for (every, flight), value in values.items():
        text = {"ha": "center", "va": "center", "bbox": {"facecolor": "white", "alpha": 0.7, "linewidth": 0}}
        axes.text(intervals.index(every), flights.index(flight), f"{100.0 * value:.2f}", **text)
    figure.colorbar(image, ax=axes)


def _loss_divergence(plot: Any, results: Results) -> Any:
    return _diverging(plot, results, lambda apart: apart.loss, "loss difference")


def _parameter_divergence(plot: Any, results: Results) -> Any:
    return _diverging(plot, results, lambda apart: apart.parameters, "parameter distance")


def _diverging(plot: Any, results: Results, series_of: Callable[[Any], Series], y: str) -> Any:
    """A panel per suite, a line per variant through the means over seeds; nothing where nothing was measured."""
    suites = _suites_with(results, STRUCK)
    if not suites:
        return None
    figure, panels = _panels(plot, suites, "step", y)
    smallest: list[float] = []
    for suite, axes in panels.items():
        for variant in STRUCK:
            known = [apart for run in results.runs(suite, variant).values() if (apart := divergence(results, run.cell)) is not None]
            bands = band(series_of(apart) for apart in known)
            if bands:
                steps = [each.step for each in bands]
                style = {"color": COLOURS[variant], "linestyle": LINES[variant], "linewidth": 1.2}
                axes.plot(steps, [each.mean for each in bands], label=variant.value, **style)
                axes.fill_between(
                    steps,
                    [each.low for each in bands],
                    [each.high for each in bands],
                    color=COLOURS[variant],
                    alpha=0.25,
                    linewidth=0,
                )
                smallest += [min((each.mean for each in bands if each.mean > 0), default=1e-16)]
    if not smallest:
        return None
    for axes in panels.values():
        axes.set_yscale("symlog", linthresh=max(min(smallest), 1e-18))
        axes.set_ylim(bottom=0)
    _one_legend(figure, panels)
    return figure


def _suites_with(results: Results, variants: Sequence[Variant]) -> tuple[Suite, ...]:
    """In which a run of any of these variants is on record."""
    return tuple(suite for suite in results.suites if any(results.runs(suite, variant) for variant in variants))


def _panels(plot: Any, suites: Sequence[Suite], x: str, y: str = "", *, share_x: bool = True) -> tuple[Any, dict[Suite, Any]]:
    """A figure with a pair of axes per suite."""
    columns = min(len(suites), 4)
    rows = -(-len(suites) // columns)
    size = (max(3.2 * columns, 8.0), 2.6 * rows + 0.6)
    figure, grid = plot.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False, sharex=share_x, sharey=True)
    for axes in grid.flat[len(suites) :]:
        axes.set_visible(False)
    panels = dict(zip(suites, grid.flat, strict=False))
    for suite, axes in panels.items():
        axes.set_title(suite.name, fontsize="small")
        axes.grid(alpha=0.3)
    figure.supxlabel(x, fontsize="medium")
    figure.supylabel(y, fontsize="medium")
    return figure, panels


def _one_legend(figure: Any, panels: Mapping[Suite, Any]) -> None:
    handles = {label: handle for axes in panels.values() for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    if handles:
        figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=len(handles), **_TIGHT)


def _ends(intervals: Any, factor: float = 1.0) -> tuple[list[float], list[float] | None]:
    """Means and margins, times a factor; no margins where one is unknown."""
    known = list(intervals)
    margins = [each.margin for each in known if each.margin is not None]
    complete = [abs(factor) * margin for margin in margins] if len(margins) == len(known) else None
    return [factor * each.mean for each in known], complete


_FIGURES: dict[str, Callable[[Any, Results], Any]] = {
    "goodput": _goodput,
    "gain": _gain,
    "stall_gain": _stall_gain,
    "wall_time": _wall_time,
    "failures": _failures,
    "sweep": _sweep,
    "loss_divergence": _loss_divergence,
    "parameter_divergence": _parameter_divergence,
}
