"""What the worker that serves an attempt keeps of it: whose turn it is to be told what. Pure."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from restorer.rendezvous import members_of

Telling = tuple[str, Mapping[str, object]]
"""A worker, and what it is to be told."""


@dataclass(slots=True)
class Table:
    """Of one attempt."""

    members: frozenset[str]
    _keys: dict[tuple[str, ...], dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    """Published rendezvous keys by the members of their group."""
    _ready: set[str] = field(default_factory=set)

    def publish(self, key: str, value: str) -> list[Telling]:
        """Take in a key; once every member of its group has published its own, all of them are told all at once."""
        group = tuple(members_of(key))
        keys = self._keys[group]
        keys[key] = value
        return [(member, {"keys": keys}) for member in group] if len(keys) == len(group) else []

    def ready(self, worker: str) -> list[Telling]:
        """A member is ready; once all are, all are told."""
        self._ready.add(worker)
        return [(member, {"go": True}) for member in self.members] if self._ready >= self.members else []
