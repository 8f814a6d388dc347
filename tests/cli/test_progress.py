"""Progress where there is no terminal: a line now and then, and nothing of short work."""

import io

import pytest
from rich.console import Console
from rich.markup import escape

from kintsugi.cli import progress as told


@pytest.fixture
def clock(monkeypatch):
    """Seconds, for a test to wind on, by which progress is told."""
    now = [100.0]
    monkeypatch.setattr(told.Progress, "__init__", _by(now, told.Progress.__init__))
    return now


def _by(now, built):
    return lambda self, *columns, **options: built(self, *columns, get_time=lambda: now[0], **options)


def test_a_line_is_told_every_half_minute(clock):
    file = io.StringIO()
    with told.progress_of(console=Console(file=file, width=100)) as progress:
        task = progress.add_task(escape("runs [a]"), total=20)
        for _ in range(10):
            clock[0] += 10.0
            progress.advance(task, 2)
    assert file.getvalue().splitlines() == [
        "runs [a]: 6 of 20 after 0:00:30, about 0:01:10 to go",
        "runs [a]: 12 of 20 after 0:01:00, about 0:00:40 to go",
        "runs [a]: 18 of 20 after 0:01:30, about 0:00:10 to go",
    ]


def test_what_is_set_is_told_too_and_a_total_may_be_unknown(clock):
    file = io.StringIO()
    with told.progress_of(console=Console(file=file, width=100)) as progress:
        task = progress.add_task("cells", total=None)
        clock[0] += 31.0
        progress.update(task, completed=3)
    assert file.getvalue() == "cells: 3 after 0:00:31\n"


def test_short_work_tells_nothing_and_a_terminal_has_a_bar(clock):
    file, terminal = io.StringIO(), io.StringIO()
    with told.progress_of(console=Console(file=file)) as progress:
        progress.advance(progress.add_task("cells", total=1))
    with told.progress_of(console=Console(file=terminal, force_terminal=True, width=100)) as progress:
        clock[0] += 31.0
        progress.advance(progress.add_task("cells", total=1))
        progress.refresh()
    assert not file.getvalue()
    assert "100%" in terminal.getvalue()
    assert " of 1" not in terminal.getvalue()


def test_items_that_are_taken_one_by_one_count(clock, capsys):
    taken = []
    for item in told.tracked("abc", 3, "letters"):
        taken.append(item)
        clock[0] += 40.0
    assert taken == list("abc")
    assert capsys.readouterr().err.splitlines()[-1] == "letters: 3 of 3 after 0:02:00"
