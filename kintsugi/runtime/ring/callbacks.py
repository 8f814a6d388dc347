"""Whom a member of a ring tells what."""

from collections.abc import Callable
from dataclasses import dataclass

from kintsugi.runtime.ring.messages import Agreement


def _nothing(_: object) -> None:
    """Nobody wants to be told."""


def _no_note(_: Agreement) -> str:
    """Agreements say nothing beyond their members and contributions."""
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Callbacks:
    """Whom a member tells what. All are called from the member's thread: they must return within a few milliseconds."""

    on_agreement: Callable[[Agreement], None]
    """A generation is decided, and this worker is part of it: go on from the agreement's `committed_step`."""
    on_left_out: Callable[[Agreement], None] = _nothing
    """The others go on without this worker: what it did since counts no more."""
    on_stop: Callable[[int], None] = _nothing
    """Leave the step: the generation (its number) is being mended, and nothing commits in it any more."""
    on_failed: Callable[[Exception], None] = _nothing
    """This member cannot go on, and commits nothing any more: its process should end. The others find it gone."""
    on_frozen: Callable[[str], None] = _nothing
    """A member has been silent for too long: whoever can should end its process, so that its end is certain."""
    choose: Callable[[Agreement], str] = _no_note
    """The note of an agreement to be, such as the digest of the plan for its members; asked on one worker alone."""
