"""Pictures as PNG and SVG, drawn by matplotlib, which only who wants pictures needs."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kintsugi.core.errors import InvalidInputError
from kintsugi.reporting.files import write_whole

FORMATS = ("png", "svg")
SIZE = (8.0, 4.0)
"""Width and height in inches."""


def pyplot() -> Any:
    """Matplotlib's drawing functions, without a screen; the same data give the same file.

    Raises:
        InvalidInputError: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
    except ModuleNotFoundError as error:
        raise InvalidInputError("figures need matplotlib: pip install 'kintsugi[plot]'", field="out") from error
    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "kintsugi"
    import matplotlib.pyplot as plot

    return plot


def new_axes(plot: Any, x: str, y: str, *, size: tuple[float, float] = SIZE) -> tuple[Any, Any]:
    """A figure and its one pair of axes, with what they show."""
    figure, axes = plot.subplots(figsize=size, layout="constrained")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.3)
    return figure, axes


def save(figure: Any, path: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write a figure in every format, beside each other; what was written.

    Raises:
        OSError: one cannot be written; the error names it, and what was there stays.
    """
    written = [path.with_name(f"{path.name}.{kind}") for kind in formats]
    for target, kind in zip(written, formats, strict=True):
        drawn = io.BytesIO()
        figure.savefig(drawn, format=kind, metadata={"Date": None} if kind == "svg" else None)
        write_whole(target, drawn.getvalue())
    return written
