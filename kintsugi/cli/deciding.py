"""Decisions for commands whose standard output is for their result alone."""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from kintsugi.core.decision import Decision
from kintsugi.core.job import Snapshot
from planner.replan import replan

OUTPUT, ERRORS = 1, 2
"""Descriptors of standard output and standard error."""


def decide(snapshot: Snapshot) -> Decision:
    """The planner's decision, as `planner.replan.replan` with what it raises."""
    with native_lines_apart():
        return replan(snapshot)


@contextmanager
def native_lines_apart() -> Iterator[None]:
    """Meanwhile native libraries write to standard error: HiGHS has lines that nothing turns off, amid whatever reads JSON."""
    try:
        own = os.dup(OUTPUT)
    except OSError:  # there is none that could be spoiled
        yield
        return
    sys.stdout.flush()
    try:
        os.dup2(ERRORS, OUTPUT)
        yield
    finally:
        ctypes.CDLL(None).fflush(None)
        os.dup2(own, OUTPUT)
        os.close(own)
