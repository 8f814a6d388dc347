"""Progress of long work on standard error: a bar on a terminal; elsewhere, as in a log, a line now and then."""

from collections.abc import Iterable, Iterator
from datetime import timedelta
from threading import Event, Thread
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import Progress, ProgressColumn, Task
from rich.text import Text

from kintsugi.cli.terminal import terminal

LINE_SECONDS = 30.0
"""From one line to the next where there is no terminal."""

Item = TypeVar("Item")


class _Progress(Progress):
    """Tells by lines where bars cannot be drawn, also while nothing is done: the first of many parts may take long."""

    def __init__(self, *columns: str | ProgressColumn, console: Console, **options: Any) -> None:
        super().__init__(*columns, console=console, disable=not console.is_terminal, **options)
        self._ended = Event()
        self._teller = Thread(target=self._tell, name="progress", daemon=True)

    def start(self) -> None:
        super().start()
        if self.disable and self._teller.ident is None:
            self._teller.start()

    def stop(self) -> None:
        self._ended.set()
        if self._teller.is_alive():
            self._teller.join()
        if self.live.is_started:
            super().stop()

    def _tell(self) -> None:
        while not self._ended.wait(LINE_SECONDS):
            for task in self.tasks:
                self.console.print(_line(task), markup=False)


def _line(task: Task) -> str:
    done = f"{task.completed:,.0f}" if task.total is None else f"{task.completed:,.0f} of {task.total:,.0f}"
    left = f", about {timedelta(seconds=task.time_remaining)} to go" if task.time_remaining else ""
    return f"{Text.from_markup(task.description).plain}: {done} after {timedelta(seconds=int(task.elapsed or 0))}{left}"


def progress_of(*columns: str | ProgressColumn, console: Console | None = None, transient: bool = True) -> Progress:
    """Progress to add tasks to, and to be entered for as long as there is any.

    Args:
        columns: of the bar; rich's own by default. Descriptions of tasks are markup.
        console: where it is told; standard error by default.
        transient: whether a bar goes when its work ends.
    """
    return _Progress(*columns, console=console or terminal(stderr=True), transient=transient)


def tracked(items: Iterable[Item], total: int, description: str) -> Iterator[Item]:
    """`items`, with the progress of whoever takes them."""
    with progress_of() as progress:
        task = progress.add_task(description, total=total)
        for item in items:
            yield item
            progress.advance(task)
