"""Writes the tables of settings into docs/operations.md, from where the settings are defined.

    python scripts/document_settings.py

Tables stand between `<!-- settings: NAME -->` and `<!-- end -->`; everything else is left as it is.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

from api.settings import Settings
from kintsugi.client.patience import Patience
from kintsugi.runtime.options import AgentOptions, WorkerOptions
from kintsugi.runtime.overlay.options import OverlayOptions
from kintsugi.runtime.overlay.standby import StandbyOptions

DOCUMENT = Path(__file__).parents[1] / "docs" / "operations.md"
PLACE = re.compile(r"(<!-- settings: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}

Row = tuple[str, str, str]
"""Name, default, and what it does."""


def service_rows() -> Iterator[Row]:
    """The service's settings as environment variables."""
    for name, field in Settings.model_fields.items():
        bounds = [
            f"{word} {_plain(bound)}"
            for part in field.metadata
            for key, word in BOUNDS.items()
            if (bound := getattr(part, key, None)) is not None
        ]
        choices = re.findall(r"'(\w+)'", str(field.annotation)) if "Literal" in str(field.annotation) else []
        limits = ", ".join(bounds) or " or ".join(f"`{choice}`" for choice in choices)
        text = " ".join((field.description or "").split())
        yield f"KINTSUGI_{name.upper()}", _plain(field.default), f"{text} ({limits})" if limits else text


def dataclass_rows(kind: type[Any]) -> Iterator[Row]:
    """The fields of a dataclass with their docstrings."""
    texts = _docstrings(kind)
    for field in fields(kind):
        has_default = field.default is not MISSING
        yield field.name, _plain(field.default) if has_default else "", texts.get(field.name, "")


def table(rows: Iterator[Row], heading: str) -> str:
    """Rows as Markdown."""
    lines = [f"| {heading} | default | |", "|---|---|---|"]
    lines += [
        f"| `{name}` | {f'`{default}`' if default else ''} | {text.replace('|', chr(92) + '|')} |" for name, default, text in rows
    ]
    return "\n".join(lines) + "\n"


TABLES: dict[str, Callable[[], str]] = {
    "service": lambda: table(service_rows(), "variable"),
    "client": lambda: table(dataclass_rows(Patience), "`Patience`"),
    "agent": lambda: table(dataclass_rows(AgentOptions), "`AgentOptions`"),
    "worker": lambda: table(dataclass_rows(WorkerOptions), "`WorkerOptions`"),
    "overlay": lambda: table(dataclass_rows(OverlayOptions), "`OverlayOptions`"),
    "standby": lambda: table(dataclass_rows(StandbyOptions), "`StandbyOptions`"),
}


def updated(document: str) -> str:
    """The document with its tables as they are to be.

    Raises:
        KeyError: it asks for a table that there is not.
    """
    return PLACE.sub(lambda found: f"{found[1]}\n{TABLES[found[2]]()}\n{found[3]}", document)


def _plain(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return str(value).lower().replace("none", "")
    if isinstance(value, float | int):
        return f"{value:g}" if abs(value) < 1e6 else f"{value:.0f}"
    return "[]" if value == () else str(value)


def _docstrings(kind: type[Any]) -> dict[str, str]:
    """What stands under each field of a class, by name."""
    (body,) = (node.body for node in ast.parse(textwrap.dedent(inspect.getsource(kind))).body if isinstance(node, ast.ClassDef))
    found = {}
    for before, node in pairwise(body):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_text and isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name):
            found[before.target.id] = " ".join(str(ast.literal_eval(node.value)).split())  # type: ignore[attr-defined]
    return found


if __name__ == "__main__":
    DOCUMENT.write_text(updated(DOCUMENT.read_text()))
