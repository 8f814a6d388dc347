"""This process's sockets, seen from beside whoever owns them: which there are, whether anything moves, and shutting them down."""

import errno
import os
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Set
from contextlib import suppress
from weakref import WeakSet

DRAIN_SECONDS = 0.5
"""Without a byte on any of some connections, after which they are quiet."""

MOST_DRAINS = 120
"""So often that is looked at, at most."""

_TCP_INFO_BYTES = 136
_TCP_INFO_MOVED = "=120xQQ"
"""Bytes acknowledged and received in `struct tcp_info` of Linux."""

Sockets = frozenset[tuple[int, str]]
"""Descriptors with their inodes, which tell them from later files of the same number."""

_ADDRESSES = tuple(
    re.compile(b"(?=(" + re.escape(struct.pack("=H", family)) + b".{%d}))" % num_bytes, re.DOTALL)
    for family, num_bytes in ((socket.AF_INET, 6), (socket.AF_INET6, 22))
)
"""Of IP and TCP as systems keep them (`struct sockaddr_in` and `sockaddr_in6`, as far as they tell a port and a host)."""


_apart: WeakSet[socket.socket] = WeakSet()
_opening = threading.Lock()


def kept_apart(make: Callable[[], socket.socket]) -> socket.socket:
    """Open a socket that `open_sockets` never tells of, whenever it is asked; `make` must not wait.

    For connections that live beside groups and outlive them: whoever gives groups up takes all sockets for theirs that were
    opened while they were connected.
    """
    with _opening:
        made = make()
        _apart.add(made)
    return made


def open_sockets() -> Sockets:
    """Descriptor and inode of every open socket of this process, but for those that are `kept_apart`."""
    found: set[tuple[int, str]] = set()
    with _opening:
        apart = {kept.fileno() for kept in _apart}
        for name in os.listdir("/proc/self/fd"):
            try:
                target = os.readlink(f"/proc/self/fd/{name}")
            except OSError:
                continue
            if target.startswith("socket:") and int(name) not in apart:
                found.add((int(name), target))
    return frozenset(found)


def addresses_in(text: bytes) -> frozenset[bytes]:
    """Whatever may be an address in what a library says about itself in bytes of its own. O(bytes)."""
    return frozenset(found for kind in _ADDRESSES for found in kind.findall(text))


def ending_at(sockets: Sockets, addresses: Set[bytes]) -> Sockets:
    """The TCP connections of which one end or the other is at one of these addresses."""
    return frozenset(own for own in sockets if not addresses.isdisjoint(_ends(*own)))


def _ends(descriptor: int, target: str) -> set[bytes]:
    """Both addresses of a connection; none of what is no TCP connection, or closed since."""
    with suppress(OSError), _duplicate(descriptor, target) as connection:
        if connection.family in (socket.AF_INET, socket.AF_INET6):
            return {_packed(connection.family, *end) for end in (connection.getsockname(), connection.getpeername())}
    return set()


def _packed(family: int, host: str, port: int, flow: int = 0, _: int = 0) -> bytes:
    begin = struct.pack("=H", family) + struct.pack("!H", port)
    return begin + (struct.pack("!I", flow) if family == socket.AF_INET6 else b"") + socket.inet_pton(family, host)


def shut_down_once_quiet(sockets: Sockets) -> None:
    """Shut connections down once nothing moves on them any more; blocks for as long."""
    before, now = -1, _moved_bytes(sockets)
    for _ in range(MOST_DRAINS):
        if now == before:
            break
        time.sleep(DRAIN_SECONDS)
        before, now = now, _moved_bytes(sockets)
    shut_down(sockets)


def _moved_bytes(sockets: Sockets) -> int:
    """What has passed over connections in both directions; those that are closed do not count."""
    total = 0
    for descriptor, target in sockets:
        with suppress(OSError), _duplicate(descriptor, target) as connection:
            connection.getpeername()
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
            total += sum(struct.unpack(_TCP_INFO_MOVED, info))
    return total


def shut_down(sockets: Sockets) -> None:
    """Shut connections down, which ends their peers' waits too; what was closed since, or never connected, is passed over."""
    for descriptor in sockets:
        _shut_down(*descriptor)


def _shut_down(descriptor: int, target: str) -> None:
    """Shut one connection down through a duplicate, so that its owner's descriptor stays valid.

    Listening sockets are left alone: gloo ends the process when its `accept` fails.
    """
    with suppress(OSError), _duplicate(descriptor, target) as connection:
        connection.getpeername()
        connection.shutdown(socket.SHUT_RDWR)


def _duplicate(descriptor: int, target: str) -> socket.socket:
    """The same connection through a descriptor of its own.

    Raises:
        OSError: the descriptor is closed, or another file's by now.
    """
    duplicate = os.dup(descriptor)
    if os.readlink(f"/proc/self/fd/{duplicate}") != target:
        os.close(duplicate)
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    return socket.socket(fileno=duplicate)
