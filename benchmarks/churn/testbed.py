"""The test bed: a network namespace per node, a shaped and delayed link per link of the overlay.

Namespaces have no name: handles of this process and of those that it starts keep them, so nothing is left behind however these
end. Rates are token buckets of the kernel, at either end of a link; latency is the relay's.
"""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.churn.overlays import Wire
from benchmarks.churn.relay import relay_main
from benchmarks.links import CLONE_NEWNET, enter
from benchmarks.members import Place
from kintsugi.core.errors import UnavailableError
from kintsugi.runtime.forking import forkserver

_BURST_BYTES = 128 * 1024
_QUEUE_SECONDS = 0.2
_PATIENCE_SECONDS = 60.0
_BUFFER_BYTES = 16 * 2**20
"""What a socket may hold at most: more than a gigabit per second times the way there and back."""
_SYSCTLS = {
    "tcp_rmem": f"4096 131072 {_BUFFER_BYTES}",
    "tcp_wmem": f"4096 65536 {_BUFFER_BYTES}",
    "tcp_slow_start_after_idle": "0",
}


def unavailable_reason() -> str | None:
    """Why there can be no test bed here; None where there can be one."""
    if os.geteuid() != 0:
        return "making network namespaces takes root"
    missing = [program for program in ("ip", "tc", "nsenter") if shutil.which(program) is None]
    if missing:
        return f"{' and '.join(missing)} not found (iproute2, util-linux)"
    if not Path("/dev/net/tun").exists():
        return "the kernel has no TUN devices (/dev/net/tun)"
    try:
        os.close(_new_namespace())
    except OSError as error:
        return f"network namespaces cannot be made: {error}"
    return None


class Testbed(AbstractContextManager["Testbed"]):
    """Nodes, each in a namespace, and the links that join them."""

    __test__ = False

    def __init__(self, names: Sequence[str], wires: Sequence[Wire]) -> None:
        """Nothing is made before the block is entered.

        Args:
            names: of the nodes, at most 200, each short enough for the name of a network device.
            wires: between them.
        """
        self.names, self.wires = tuple(names), tuple(wires)
        self._handles: dict[str, int] = {}
        self._context = forkserver()
        self._control, self._relays = self._context.Pipe()
        self._relay: ForkServerProcess | None = None

    def __enter__(self) -> Self:
        try:
            for name in self.names:
                self._handles[name] = _new_namespace()
            self._start_relay()
            for name in self.names:
                self._furnish(name)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the relay, and with it all links; the namespaces end with the last process in them."""
        if self._relay is not None and self._relay.pid is not None:
            self._relay.kill()
            self._relay.join(_PATIENCE_SECONDS)
        for connection in (self._control, self._relays):
            connection.close()
        while self._handles:
            os.close(self._handles.popitem()[1])

    def namespace(self, node: str) -> Path:
        """Path by which processes enter the node's namespace while this one lives."""
        return Path(f"/proc/{os.getpid()}/fd/{self._handles[node]}")

    def address(self, node: str) -> str:
        """At which the node's neighbours reach it."""
        return f"10.78.0.{self.names.index(node) + 1}"

    def places(self, nodes: Sequence[str]) -> dict[str, Place]:
        """Where processes of some nodes run."""
        return {node: Place(self.address(node), self.namespace(node)) for node in nodes}

    @contextmanager
    def inside(self, node: str) -> Iterator[None]:
        """Sockets that this thread opens in the block are the node's."""
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            enter(self.namespace(node))
            yield
        finally:
            enter(Path(f"/proc/self/fd/{home}"))
            os.close(home)

    def redraw(self, wires: Sequence[Wire]) -> None:
        """Give the same links other rates and latencies, without cutting them.

        Raises:
            UnavailableError: the relay ended; perhaps just now, so that its devices are missing.
        """
        if self._relay is None or not self._relay.is_alive():
            raise _relay_ended()
        self.wires = tuple(wires)
        for name in self.names:
            commands = [f"qdisc replace dev {peer} root {_shaper(wire)}" for peer, wire in self._links(name)]
            self._run(name, "tc", commands)
        with _relay_lives():
            self._control.send(_latencies(self.wires))
        self._heard_from_relay()

    def cut(self, one: str, other: str) -> None:
        """Nothing passes the link any more, and nobody is told."""
        self._run(one, "ip", [f"link set {other} down"])
        self._run(other, "ip", [f"link set {one} down"])

    def mend(self, one: str, other: str) -> None:
        """Undo `cut`."""
        for node, peer in ((one, other), (other, one)):
            self._run(node, "ip", [f"link set {peer} up", self._route(node, peer)])

    def _start_relay(self) -> None:
        namespaces = {name: self.namespace(name) for name in self.names}
        self._relay = self._context.Process(
            target=relay_main, args=(_latencies(self.wires), namespaces, self._relays), name="relay", daemon=True
        )
        self._relay.start()
        self._relays.close()
        self._heard_from_relay()

    def _heard_from_relay(self) -> None:
        with _relay_lives():
            if self._control.poll(_PATIENCE_SECONDS):
                self._control.recv()
                return
        raise UnavailableError(f"said nothing for {_PATIENCE_SECONDS:g} s", field="relay")

    def _furnish(self, node: str) -> None:
        """Addresses, routes, shapers and kernel settings of one namespace."""
        commands = ["link set lo up", f"address add {self.address(node)}/32 dev lo"]
        for peer, _ in self._links(node):
            commands += [f"link set {peer} mtu 1500 txqueuelen 4000 up", self._route(node, peer)]
        self._run(node, "ip", commands)
        self._run(node, "tc", [f"qdisc replace dev {peer} root {_shaper(wire)}" for peer, wire in self._links(node)])
        with self.inside(node):
            for name, value in _SYSCTLS.items():
                Path("/proc/sys/net/ipv4", name).write_text(value)

    def _route(self, node: str, peer: str) -> str:
        return f"route replace {self.address(peer)}/32 dev {peer} src {self.address(node)}"

    def _links(self, node: str) -> list[tuple[str, Wire]]:
        """Neighbour and link, of every link of a node."""
        wires = [wire for wire in self.wires if node in wire.between]
        return [(wire.between[wire.between[0] == node], wire) for wire in wires]

    def _run(self, node: str, program: str, commands: Sequence[str]) -> None:
        """A batch of `ip` or `tc` commands in a node's namespace."""
        done = subprocess.run(
            ["nsenter", f"--net={self.namespace(node)}", program, "-batch", "-"],
            input="\n".join(commands) + "\n",
            capture_output=True,
            text=True,
            check=False,
            timeout=_PATIENCE_SECONDS,
        )
        if done.returncode != 0:
            raise UnavailableError(f"{program} said in the namespace of {node}: {done.stderr.strip()}", field="testbed")


@contextmanager
def _relay_lives() -> Iterator[None]:
    """Who speaks with the relay learns that it ended, whichever way the connection shows it."""
    try:
        yield
    except (EOFError, OSError) as error:
        raise _relay_ended() from error


def _relay_ended() -> UnavailableError:
    return UnavailableError("ended; see its own error above", field="relay")


def _latencies(wires: Sequence[Wire]) -> dict[tuple[str, str], float]:
    return {wire.between: wire.latency_seconds for wire in wires}


def _shaper(wire: Wire) -> str:
    return f"tbf rate {round(wire.bits_per_second)}bit burst {_BURST_BYTES}b latency {round(_QUEUE_SECONDS * 1e3)}ms"


def _new_namespace() -> int:
    """A handle of a new network namespace; this thread stays where it is."""
    libc = ctypes.CDLL(None, use_errno=True)
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.unshare(CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "could not make a network namespace")
        try:
            return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            enter(Path(f"/proc/self/fd/{home}"))
    finally:
        os.close(home)
