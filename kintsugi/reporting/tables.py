"""Tables that are Markdown for people, and CSV and JSON for programs, from the same values."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kintsugi.core import codec
from kintsugi.reporting.files import write_rows
from kintsugi.reporting.intervals import Interval

Value = str | int | float | Interval | None
"""Null is what is not known."""
UNKNOWN = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """What stands in a column."""

    key: str
    """Its name in CSV and JSON; an interval's margin is beside it as <key>_margin."""
    title: str
    """For people."""
    form: str = ""
    """Format of its numbers."""

    def shown(self, value: Value) -> str:
        """A value for people."""
        if value is None:
            return UNKNOWN
        if isinstance(value, Interval):
            return shown(value, self.form)
        return str(value).replace("|", "\\|") if isinstance(value, str) else format(value, self.form)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of values under columns."""

    name: str
    """Of its files."""
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]
    note: str = ""
    """What one has to know to read it."""

    def markdown(self) -> str:
        """The table as GitHub shows it, with its title above and its note below."""
        lines = [f"**{self.title}**", "", _line(column.title for column in self.columns)]
        lines.append(_line("---:" if self._is_numeric(index) else "---" for index in range(len(self.columns))))
        lines += [_line(column.shown(value) for column, value in zip(self.columns, row, strict=True)) for row in self.rows]
        return "\n".join([*lines, "", self.note, ""] if self.note else [*lines, ""])

    def write_csv(self, folder: Path) -> Path:
        """Write FOLDER/<name>.csv with every digit; margins of intervals have columns of their own.

        Raises:
            OSError: it cannot be written; the error names it, and what was there stays.
        """
        path, keys = folder / f"{self.name}.csv", self._keys()
        flat = map(self._flat, self.rows)
        write_rows(path, [keys, *([row.get(key, "") for key in keys] for row in flat)])
        return path

    def document(self) -> dict[str, Any]:
        """The table for programs: one object per row."""
        rows = [{column.key: codec.encode(value) for column, value in zip(self.columns, row, strict=True)} for row in self.rows]
        return {"name": self.name, "title": self.title, "note": self.note, "rows": rows}

    def _is_numeric(self, index: int) -> bool:
        values = [row[index] for row in self.rows if row[index] is not None]
        return bool(values) and not any(isinstance(value, str) for value in values)

    def _keys(self) -> list[str]:
        keys: list[str] = []
        for index, column in enumerate(self.columns):
            has_margin = any(isinstance(row[index], Interval) for row in self.rows)
            keys += [column.key, f"{column.key}_margin"] if has_margin else [column.key]
        return keys

    def _flat(self, row: Sequence[Value]) -> dict[str, str | int | float | None]:
        flat: dict[str, str | int | float | None] = {}
        for column, value in zip(self.columns, row, strict=True):
            if isinstance(value, Interval):
                flat |= {column.key: value.mean, f"{column.key}_margin": value.margin}
            else:
                flat[column.key] = value
        return flat


def shown(value: Interval, form: str) -> str:
    """An interval for people: mean ± margin, the margin without a sign of its own."""
    mean = format(value.mean, form)
    return mean if value.margin is None else f"{mean} ± {format(value.margin, form.replace('+', ''))}"


def _line(cells: Any) -> str:
    return f"| {' | '.join(cells)} |"
