"""Latency in user space, for kernels without netem: a process that holds both ends of every link and hands packets on late.

Every link is a pair of TUN devices, one in the namespace of either node. The kernel shapes the rate before a packet reaches the
device (the test bed's token buckets); the relay reads it, keeps it for the link's latency, and writes it to the other end.
Devices pass on segments of up to 64 KiB whole (virtio headers), so that few system calls move many bytes. The devices are
gone with the process, however it ends.
"""

import fcntl
import os
import select
import struct
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.links import enter

_TUNSETIFF, _TUNSETOFFLOAD, _TUNSETVNETHDRSZ = 0x400454CA, 0x400454D0, 0x400454D8
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
_OFFLOAD_CHECKSUM, _OFFLOAD_TSO4 = 0x01, 0x02
_HEADER_BYTES = 10
_PACKET_BYTES = 65_536 + _HEADER_BYTES
_PACKETS_AT_ONCE = 8
_IDLE_SECONDS = 0.2

Latencies = Mapping[tuple[str, str], float]
"""One way, in seconds, by link."""


@dataclass(slots=True)
class _Direction:
    source: int
    target: int
    latency_seconds: float
    waiting: deque[tuple[float, bytes]] = field(default_factory=deque)
    """When each packet is due, and the packet."""

    def take(self, now: float) -> None:
        """Read what has come."""
        due = now + self.latency_seconds
        with suppress(BlockingIOError):
            for _ in range(_PACKETS_AT_ONCE):
                self.waiting.append((due, os.read(self.source, _PACKET_BYTES)))

    def give(self, now: float) -> None:
        """Write what is due; a device that is down takes nothing, and the packet is lost as on a cut line."""
        waiting = self.waiting
        while waiting and waiting[0][0] <= now:
            with suppress(OSError):
                os.write(self.target, waiting[0][1])
            waiting.popleft()


class Relay:
    """All links of a test bed, in the process that made their devices."""

    def __init__(self, links: Latencies, namespaces: Mapping[str, Path]) -> None:
        """Make the devices: that of link (a, b) in a's namespace is called b, and the other way round.

        Raises:
            OSError: a device cannot be made.
        """
        self._directions: dict[int, _Direction] = {}
        self._of_link: dict[tuple[str, str], tuple[_Direction, _Direction]] = {}
        self._epoll = select.epoll()
        for (one, other), latency in links.items():
            first, second = _device(namespaces[one], other), _device(namespaces[other], one)
            pair = (_Direction(first, second, latency), _Direction(second, first, latency))
            self._of_link[one, other] = pair
            for direction in pair:
                self._directions[direction.source] = direction
                self._epoll.register(direction.source, select.EPOLLIN)

    def set_latencies(self, latencies: Latencies) -> None:
        """Packets that come from now on are kept for as long as this says."""
        for link, latency in latencies.items():
            for direction in self._of_link[link]:
                direction.latency_seconds = latency

    def run(self, control: Connection) -> None:
        """Hand packets on until the control connection ends; what comes over it are new latencies, which are acknowledged."""
        self._epoll.register(control.fileno(), select.EPOLLIN)
        while True:
            for handle in self._wait():
                if handle != control.fileno():
                    self._directions[handle].take(time.monotonic())
                    continue
                try:
                    self.set_latencies(control.recv())
                except (EOFError, OSError):
                    return
                control.send(None)
            for direction in self._directions.values():
                if direction.waiting:
                    direction.give(time.monotonic())

    def _wait(self) -> list[int]:
        """Which handles can be read, as soon as one can be or a packet is due; epoll's own timeouts are whole milliseconds."""
        due = min((direction.waiting[0][0] for direction in self._directions.values() if direction.waiting), default=None)
        patience = _IDLE_SECONDS if due is None else max(due - time.monotonic(), 0.0)
        select.select([self._epoll], [], [], patience)
        return [handle for handle, _ in self._epoll.poll(0)]


def relay_main(links: Latencies, namespaces: Mapping[str, Path], control: Connection) -> None:
    """Entry point of the process; says None once the devices are there, and ends with the connection."""
    with suppress(OSError):
        os.nice(-20)  # it stands in for the wire: it must not wait for those that use it
    relay = Relay(links, namespaces)
    control.send(None)
    relay.run(control)


def _device(namespace: Path, name: str) -> int:
    """A handle of a new TUN device in a namespace."""
    enter(namespace)
    handle = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(handle, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR))
    fcntl.ioctl(handle, _TUNSETVNETHDRSZ, struct.pack("i", _HEADER_BYTES))
    fcntl.ioctl(handle, _TUNSETOFFLOAD, _OFFLOAD_CHECKSUM | _OFFLOAD_TSO4)
    return handle
