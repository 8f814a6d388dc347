"""The terminal: texts appear on it as they are, for names from outside may hold what rich takes for markup.

What would steer it is written as Python does: reasons, names and files may be those of others.
"""

from typing import Any

from rich.console import Console
from rich.text import Text

from api.texts import escaped


class _Terminal(Console):
    """Shows texts, titles and cells escaped."""

    def render_str(self, text: str, **options: Any) -> Text:
        """What becomes of every text that comes without a style."""
        return super().render_str(escaped(text), **options)


def terminal(*, stderr: bool = False, width_of_files: int | None = None) -> Console:
    """Where a command prints for people. Square brackets and colons mean nothing on it; style is said by `Text`.

    Args:
        stderr: standard error instead of standard output.
        width_of_files: columns where the output is no terminal; as rich has it by default.
    """
    console = _Terminal(stderr=stderr, markup=False, emoji=False, highlight=False)
    if width_of_files is not None and not console.is_terminal:
        console.width = width_of_files
    return console


def styled(style: str, text: str, rest: str = "") -> Text:
    """`text` in a style, and `rest` without."""
    return Text.assemble((escaped(text), style), escaped(rest))
