"""Where the members of a generation find each other, before they are connected."""

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from urllib.parse import quote, unquote

from restorer.gloo import Store
from restorer.sockets import addresses_in


class Rendezvous(Store):
    """Where the members of a generation find each other's addresses: a store over the project's own control plane.

    `publish` hands a key to the control plane; what others published arrives through `deliver`. `close` frees waiters.
    """

    def __init__(self, publish: Callable[[str, bytes], None]) -> None:
        super().__init__()
        self._publish = publish
        self._values: dict[str, bytes] = {}
        self._own: list[bytes] = []
        """What this member published, which it may not have heard yet."""
        self._changed = threading.Condition()
        self._is_closed = False

    def deliver(self, key: str, value: bytes) -> None:
        """Take in what some member published."""
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def close(self) -> None:
        """Fail everyone who waits for a key."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    @property
    def addresses(self) -> frozenset[bytes]:
        """Where members listen, as they told in whatever form; what only looks like an address is among them, too."""
        with self._changed:
            told = (*self._values.values(), *self._own)
        return frozenset[bytes]().union(*map(addresses_in, told))

    def set(self, key: str, value: bytes | str) -> None:
        """Publish a key."""
        told = value.encode() if isinstance(value, str) else bytes(value)
        self._own.append(told)
        self._publish(key, told)

    def get(self, key: str) -> bytes:
        """Wait for a key."""
        with self._changed:
            self._changed.wait_for(lambda: key in self._values or self._is_closed)
            if key not in self._values:
                raise RuntimeError("the rendezvous was called off")
            return self._values[key]

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:  # noqa: ARG002  # `close` bounds the wait
        """Wait for all of `keys`."""
        for key in keys:
            self.get(key)

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all of `keys` are there."""
        return all(key in self._values for key in keys)


def group_prefix(name: str, members: Sequence[str]) -> str:
    """Prefix of a group's keys, from which the control plane reads whom to tell."""
    return f"{name}/{','.join(quote(member, safe='') for member in members)}"


def members_of(key: str) -> list[str]:
    """The members of the group that a published key belongs to."""
    return [unquote(member) for member in key.split("/")[1].split(",")]
