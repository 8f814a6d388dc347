"""Histories on the disk: one now and then for each job, so that a long log need not be folded from its beginning."""

import json
import zlib
from dataclasses import fields

from api.jobs.history import History
from api.storage.legible import legible
from kintsugi.core import codec

EVERY = 256
"""Entries between two stored histories of a job; at most so many are folded when it is looked at first."""

NAMES = frozenset(field.name for field in fields(History))


def is_due(before: int, after: int) -> bool:
    """Whether a history is to be stored now that a log grew from `before` to `after` entries."""
    return after // EVERY > before // EVERY


def packed(history: History) -> bytes:
    """A history as compressed canonical JSON."""
    return zlib.compress(codec.dumps(history).encode(), level=1)


@legible
def unpacked(data: bytes) -> History | None:
    """The history in `data`; None where it was stored by a program that knew other things of a job."""
    document = json.loads(zlib.decompress(data))
    return codec.decode(History, document) if document.keys() == NAMES else None
