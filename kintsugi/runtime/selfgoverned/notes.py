"""The texts that travel with a ring's agreement: what each survivor brings, and the decision that was chosen for all of them."""

import itertools
import json
from base64 import b64decode, b64encode
from dataclasses import dataclass

from kintsugi.core import codec
from kintsugi.core.decision import Decision
from kintsugi.core.errors import KintsugiError, error_from
from kintsugi.runtime.reach import Address
from kintsugi.runtime.selfgoverned.packed import packed, unpacked
from kintsugi.runtime.workers.commit import CommitRecord

_ERROR = "error:"


@dataclass(frozen=True, slots=True)
class Note:
    """What a survivor says about itself; it says so before it acts on it, and nothing once it is asked to leave its step."""

    applied: int
    """Generation whose plan says where its state lies."""
    record: CommitRecord | None
    """Of the last commit point that it passed; null before the first."""
    is_leaving: bool = False
    """Whether it was asked to leave: the next plan does without it, and it hands its state over."""

    def text(self) -> str:
        """For the ring; a loss that is not a number stays one. Every survivor says it to all, so its length counts squared: equal
        counts of micro-batches that follow each other are one, [count, how many].
        """
        fields = codec.encode(self)
        if self.record is not None:
            runs = [[count, len([*equal])] for count, equal in itertools.groupby(self.record.microbatches)]
            fields["record"]["microbatches"] = runs
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def parsed(cls, text: str) -> "Note":
        """What `text` said."""
        fields = json.loads(text)
        record = fields["record"]
        if record is not None:
            counts = tuple(count for count, how_many in record["microbatches"] for _ in range(how_many))
            record = CommitRecord(**{**record, "microbatches": counts})
        return cls(fields["applied"], record, fields["is_leaving"])


@dataclass(frozen=True, slots=True)
class Reachable:
    """Where the others reach a worker."""

    ring: Address
    switchboard: Address


@dataclass(frozen=True, slots=True)
class Newcomer:
    """What all members have to know of a worker that joins, besides its name and where its ring listens."""

    host: str | None
    """Where it lives, if it is new to the job; null: on a host of its own."""
    switchboard: Address

    def text(self) -> str:
        """For the ring."""
        return codec.dumps(self)

    @classmethod
    def parsed(cls, text: str) -> "Newcomer":
        """What `text` said."""
        return codec.loads(cls, text)


def note_of_packed(decision: bytes) -> str:
    """A packed decision as the agreement's note."""
    return b64encode(decision).decode()


def note_of_error(error: KintsugiError) -> str:
    """Why there is no decision, as the agreement's note."""
    return _ERROR + json.dumps(error.as_dict())


def heard(note: str) -> Decision:
    """The decision that an agreement's note tells.

    Raises:
        KintsugiError: that it tells instead.
    """
    if note.startswith(_ERROR):
        raise error_from(json.loads(note.removeprefix(_ERROR)))
    return unpacked(b64decode(note))


def note_of(decision: Decision) -> str:
    """A decision as the agreement's note."""
    return note_of_packed(packed(decision))
