"""Lines of the log wait for whoever reads them, and nobody waits for that."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO

import pytest
import structlog

from api import lines
from tests.patience import eventually

pytestmark = pytest.mark.usefixtures("talkative")


@contextmanager
def standard_error() -> Iterator[FileIO]:
    """What is written to it meanwhile comes out of this pipe."""
    out_of, into = os.pipe()
    with open(into, "w") as errors, open(out_of, "rb", buffering=0) as pipe, pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stderr", errors)
        yield pipe


def test_lines_come_in_their_order_and_the_last_before_the_end():
    with standard_error() as pipe:
        with lines.in_a_thread():
            for number in range(100):
                structlog.get_logger().error("told", number=number)
        told = pipe.read(65_536).decode().splitlines()
    assert [line.split("number=")[1].split()[0] for line in told] == [str(number) for number in range(100)]


def test_lines_are_lost_and_counted_where_nobody_reads(monkeypatch):
    monkeypatch.setattr(lines, "MOST_LINES", 10)
    read = [b""]
    with standard_error() as pipe, lines.in_a_thread():
        for _ in range(60):
            structlog.get_logger().error("told", text="x" * 4_000)
        os.set_blocking(pipe.fileno(), False)
        assert eventually(lambda: read.append(pipe.read(65_536) or b"") or b"".join(read), lambda told: b"lines were lost" in told)
    assert b"".join(read).count(b"text=") < 60
