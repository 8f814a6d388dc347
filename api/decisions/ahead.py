"""What makes a plan ahead: a process of its own, so that the interpreter that answers requests never waits for one."""

from dataclasses import replace
from functools import lru_cache

from api.decisions.forkserver import ForkServer
from api.decisions.workshop import Workshop
from api.storage.shelf import Decided
from kintsugi.core import codec
from kintsugi.core.job import Snapshot
from planner.contingency import Loss, plan_ahead

NICENESS = 10
"""How far those who wait for an answer go before the process that plans ahead."""
SNAPSHOTS = 4
"""Snapshots that the process keeps decoded; all losses of one job share theirs."""

Made = tuple[str, Decided]
"""A fingerprint and the decision for the snapshot that it belongs to."""


def maker(server: ForkServer) -> Workshop:
    """The one process that makes plans ahead, one after the other; it begins with the first, as a fork of `server`."""
    return Workshop(1, server, niceness=NICENESS)


def make(workshop: Workshop, base: str, loss: Loss) -> Made | None:
    """The decision for one loss; None where it leaves no plan.

    Args:
        workshop: whose process makes it.
        base: JSON of the snapshot before the loss.
        loss: who is lost.

    Raises:
        UnavailableError: the process ended (it may have been killed for memory); another takes its place.
        KintsugiError: planning failed.
    """
    return workshop.do(_make, base, loss)


@lru_cache(SNAPSHOTS)
def _read(base: str) -> Snapshot:
    return codec.loads(Snapshot, base)


def _make(base: str, loss: Loss) -> Made | None:
    made = plan_ahead(_read(base), loss)
    return None if made is None else (made.fingerprint, replace(Decided.of(made.decision), plan=None))
