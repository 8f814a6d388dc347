"""Emulated links: a network namespace per member, joined by a bridge, each with its own rate in both directions.

Needs root, `ip` and `tc`. Everything is made in namespaces of this process's own name and deleted on every path;
what a process left that was killed outright is deleted by the next one.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Self

from kintsugi.core.errors import UnavailableError

_NAME = "kintsugi"
CLONE_NEWNET = 0x40000000
_BURST_BYTES = 128 * 1024
_QUEUE_MILLISECONDS = 200
_QUANTUM_BYTES = 3028
"""That a class sends before another one may: two full frames."""
HEADER_RATIO = 1514 / 1448
"""Bytes on the link per byte of payload: Ethernet, IP and TCP headers of full segments."""


def unavailable_reason() -> str | None:
    """Why links cannot be emulated here; None where they can."""
    if os.geteuid() != 0:
        return "making network namespaces takes root"
    missing = [program for program in ("ip", "tc") if shutil.which(program) is None]
    if missing:
        return f"{' and '.join(missing)} of iproute2 not found"
    probe = name_of("probe")
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True, check=False)
    subprocess.run(["ip", "netns", "delete", probe], capture_output=True, check=False)
    return None if made.returncode == 0 else f"network namespaces cannot be made: {made.stderr.strip()}"


class Namespaces(AbstractContextManager["Namespaces"]):
    """Named network namespaces with what links them: made as the block is entered, deleted however it is left."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)

    @abstractmethod
    def make(self) -> None:
        """Make the namespaces and their links."""

    def __enter__(self) -> Self:
        reason = unavailable_reason()
        if reason is not None:
            raise UnavailableError(reason, field="links")
        self._before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        try:
            _delete_leftovers()
            self.make()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Delete all namespaces, and with them links and shapers."""
        for name in self._names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
        signal.signal(signal.SIGTERM, self._before)


class EmulatedLinks(Namespaces):
    """One namespace and address for each member."""

    def __init__(self, payload_bytes_per_second: Mapping[str, float]) -> None:
        """Nothing is made before the block is entered.

        Args:
            payload_bytes_per_second: of each member (at most 200), each way, headers not counted.
        """
        self._rates = dict(payload_bytes_per_second)
        self.addresses = {member: f"10.77.0.{index + 1}" for index, member in enumerate(self._rates)}
        self._hub = name_of("hub")
        super().__init__((*map(self.namespace, self._rates), self._hub))

    def namespace(self, member: str) -> str:
        """Name of the member's network namespace."""
        return name_of(member)

    def make(self) -> None:
        """A bridge, and to it a shaped link of every member."""
        run_command("ip", "netns", "add", self._hub)
        run_command("ip", "-n", self._hub, "link", "add", "bridge", "type", "bridge")
        run_command("ip", "-n", self._hub, "link", "set", "bridge", "up")
        for index, member in enumerate(self._rates):
            self._join(member, f"port{index}")

    def _join(self, member: str, port: str) -> None:
        own = self.namespace(member)
        run_command("ip", "netns", "add", own)
        run_command("ip", "-n", self._hub, "link", "add", port, "type", "veth", "peer", "name", "port", "netns", own)
        run_command("ip", "-n", self._hub, "link", "set", port, "master", "bridge", "up")
        run_command("ip", "-n", own, "address", "add", f"{self.addresses[member]}/24", "dev", "port")
        run_command("ip", "-n", own, "link", "set", "port", "up")
        run_command("ip", "-n", own, "link", "set", "lo", "up")
        bits_per_second = 8 * self._rates[member] * HEADER_RATIO
        shape(own, "port", bits_per_second, burst_bytes=_BURST_BYTES)
        shape(self._hub, port, bits_per_second, burst_bytes=_BURST_BYTES)


class UnevenLinks(EmulatedLinks):
    """The same with slower links between some members."""

    def __init__(self, payload_bytes_per_second: Mapping[str, float], slower: Mapping[tuple[str, str], float]) -> None:
        """Nothing is made before the block is entered.

        Args:
            payload_bytes_per_second: of each member, each way, headers not counted.
            slower: the same of pairs of members, each way.
        """
        super().__init__(payload_bytes_per_second)
        self._slower = {**slower, **{(other, one): rate for (one, other), rate in slower.items()}}

    def make(self) -> None:
        """What members send to one to which they have a slower link is held up by itself."""
        super().make()
        for member in dict.fromkeys(member for member, _ in self._slower):
            classes = {to: rate for (own, to), rate in self._slower.items() if own == member}
            namespace = self.namespace(member)
            self._traffic(namespace, "qdisc replace dev port root handle 1: htb default 1")
            self._add_class(namespace, 1, self._rates[member])
            for number, (to, rate) in enumerate(classes.items(), start=2):
                self._add_class(namespace, number, rate)
                match = f"u32 match ip dst {self.addresses[to]}/32 flowid 1:{number}"
                self._traffic(namespace, f"filter add dev port protocol ip parent 1: prio 1 {match}")

    def _add_class(self, namespace: str, number: int, rate: float) -> None:
        bits = round(8 * rate * HEADER_RATIO)
        shaper = f"htb rate {bits}bit burst {_BURST_BYTES}b quantum {_QUANTUM_BYTES}"
        self._traffic(namespace, f"class add dev port parent 1: classid 1:{number} {shaper}")

    def _traffic(self, namespace: str, rule: str) -> None:
        run_command("tc", "-n", namespace, *rule.split())


def name_of(namespace: str) -> str:
    """A name that tells whose the namespace is: this process's."""
    return f"{_NAME}-{os.getpid()}-{namespace}"


def shape(namespace: str, device: str, bits_per_second: float, *, burst_bytes: int) -> None:
    """Let a device pass so much and no more."""
    bucket = f"tbf rate {round(bits_per_second)}bit burst {burst_bytes}b latency {_QUEUE_MILLISECONDS}ms"
    run_command("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", *bucket.split())


def _delete_leftovers() -> None:
    """Delete the namespaces of processes that were killed before they could."""
    for name in Path("/run/netns").glob(f"{_NAME}-*"):
        owner = name.name.split("-")[1]
        if not Path(f"/proc/{owner}").exists():
            subprocess.run(["ip", "netns", "delete", name.name], capture_output=True, check=False)


def enter(namespace: str | Path) -> None:
    """Move this thread, and threads that it starts from now on, into a network namespace: a name, or a path to one."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/run/netns", namespace).open("rb") as handle:
        if libc.setns(handle.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"could not enter network namespace {namespace}")


def run_command(*command: str) -> None:
    """Run a command that must succeed.

    Raises:
        UnavailableError: it did not; with what it said.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise UnavailableError(f"`{' '.join(command)}` failed: {done.stderr.strip()}", field="links")
