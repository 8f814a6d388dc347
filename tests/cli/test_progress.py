"""Progress where there is no terminal: a line now and then, and nothing of short work."""

import io
import threading

import pytest
from rich.console import Console
from rich.markup import escape

from kintsugi.cli import progress as told
from tests.patience import eventually


@pytest.fixture
def file(monkeypatch):
    """Where lines are told one after the other."""
    monkeypatch.setattr(told, "LINE_SECONDS", 0.01)
    return io.StringIO()


def tells(file: io.StringIO, begin: str) -> bool:
    """Whether there is such a line, or comes to be."""
    return eventually(lambda: any(line.startswith(begin) for line in file.getvalue().splitlines()))


def test_lines_tell_what_is_done_also_where_that_is_nothing_yet(file):
    with told.progress_of(console=Console(file=file, width=100)) as progress:
        task = progress.add_task(escape("runs [a]"), total=2_000)
        assert tells(file, "runs [a]: 0 of 2,000 after 0:0")
        progress.advance(task, 1_200)
        assert tells(file, "runs [a]: 1,200 of 2,000 after 0:0")
    assert "progress" not in {thread.name for thread in threading.enumerate()}


def test_a_total_may_be_unknown_and_progress_may_begin_late_and_more_than_once(file):
    progress = told.progress_of(console=Console(file=file, width=100))
    progress.update(progress.add_task("", total=None), completed=3, description="a cell")
    progress.start()
    progress.start()
    assert tells(file, "a cell: 3 after 0:0")
    progress.stop()
    progress.stop()
    progress.start()


def test_short_work_tells_nothing_and_nor_does_what_never_began():
    file = io.StringIO()
    with told.progress_of(console=Console(file=file)) as progress:
        progress.advance(progress.add_task("cells", total=1))
    told.progress_of(console=Console(file=file)).stop()
    assert not file.getvalue()


def test_a_terminal_has_a_bar(file):
    with told.progress_of(console=Console(file=file, force_terminal=True, width=100)) as progress:
        progress.advance(progress.add_task("cells", total=1))
    assert "100%" in file.getvalue()
    assert " of 1" not in file.getvalue()


def test_items_are_tracked_as_they_are_taken(file, monkeypatch):
    monkeypatch.setattr(told, "terminal", lambda **_: Console(file=file, width=100))
    letters = told.tracked("abc", 3, "letters")
    assert next(letters) == "a"
    assert tells(file, "letters: 0 of 3 after ")
    assert next(letters) == "b"
    assert tells(file, "letters: 1 of 3 after ")
    assert list(letters) == ["c"]
