"""Where plans are made ahead: in a process of its own, so that the interpreter that answers requests never waits for one."""

import os
import signal
import threading
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import cache, lru_cache
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from typing import Any

from api.storage.shelf import Decided
from kintsugi.core import codec
from kintsugi.core.errors import KintsugiError, UnavailableError, error_from
from kintsugi.core.job import Snapshot
from planner.contingency import Loss, plan_ahead

NICENESS = 10
"""How far those who wait for an answer go before the process that plans ahead."""
LONGEST_SECONDS = 600.0
"""For one plan, and for the process to begin."""
SNAPSHOTS = 4
"""Snapshots that the process keeps decoded; all losses of one job share theirs."""

Made = tuple[str, Decided]
"""A fingerprint and the decision for the snapshot that it belongs to."""

Problem = dict[str, Any]
"""An error as JSON: errors themselves do not travel between processes."""


def make(base: str, loss: Loss) -> Made | None:
    """The decision for one loss; None where it leaves no plan.

    One process makes the plans of all threads that ask, one after the other; it begins with the first and ends with this one.

    Args:
        base: JSON of the snapshot before the loss.
        loss: who is lost.

    Raises:
        UnavailableError: the process ended (it may have been killed for memory); the next call begins another.
        KintsugiError: planning failed.
    """
    pool = _pool()
    try:
        future: Future[Made | Problem | None] = pool.submit(_make, base, loss)
        made = future.result(LONGEST_SECONDS)
    except (BrokenProcessPool, TimeoutError) as error:
        _pool.cache_clear()
        pool.shutdown(wait=False, cancel_futures=True)
        raise UnavailableError("the process that plans ahead ended or does not answer") from error
    if isinstance(made, dict):
        raise error_from(made)
    return made


@cache
def _pool() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_begin)


def _begin() -> None:
    os.nice(NICENESS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ctrl-c reaches the whole group; the service ends this process in order
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()


def _end_with_parent() -> None:
    """A service that is killed must not leave this process behind."""
    parent = parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


@lru_cache(SNAPSHOTS)
def _read(base: str) -> Snapshot:
    return codec.loads(Snapshot, base)


def _make(base: str, loss: Loss) -> Made | Problem | None:
    try:
        made = plan_ahead(_read(base), loss)
    except KintsugiError as error:
        return error.as_dict()
    return None if made is None else (made.fingerprint, replace(Decided.of(made.decision), plan=None))
