"""The nodes of the test bed: processes that train with emulated computing and real reductions, and replicate a state meanwhile.

They do what the benchmark tells them through a pipe: open lines, train, send parts of the state from a step's boundary on. Every
source's state is the same file in memory, as it would be the same in every replica.
"""

import hashlib
import mmap
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.churn.plane import Lines, Send
from benchmarks.churn.testbed import Testbed
from benchmarks.members import Member, MemberCrew

_PATIENCE_SECONDS = 600.0
_READ_BYTES = 64 * 2**20
_CHUNK_ELEMENTS = 64 * 1024
"""Of the pieces in which gradients travel: no node waits for all of them before it passes the first on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What the nodes do over and over: sleep, then add their gradients up over a tree."""

    compute_seconds: float
    gradient_bytes: int
    parents: Mapping[str, str]
    """Of every node but the root."""

    def children(self, node: str) -> tuple[str, ...]:
        """Whose gradients a node adds to its own."""
        return tuple(child for child, parent in self.parents.items() if parent == node)


@dataclass(frozen=True, slots=True, kw_only=True)
class Duty:
    """What a node does at the boundary behind a step."""

    boundary: int
    sends: tuple[Send, ...] = ()
    waits: bool = False
    """Whether it stops training there until it is told to go on."""


@dataclass(slots=True)
class Trainer:
    """The training loop of one node, in a thread of its own."""

    lines: Lines
    training: Training
    num_steps: int = 0
    ends: list[float] = field(default_factory=list)
    """When each step ended, on the clock that all processes share."""
    duty: Duty | None = None
    began_at: float | None = None
    """When the duty was begun."""
    go_on: threading.Event = field(default_factory=threading.Event)
    stopping: bool = False

    def run(self) -> None:
        """Train until the lines are closed."""
        gradients = np.ones(self.training.gradient_bytes // 4, dtype=np.float32)
        others = np.empty_like(gradients)
        try:
            while True:
                time.sleep(self.training.compute_seconds)
                gradients[:] = 1.0
                self._reduce(gradients, others)
                self.ends.append(time.monotonic())
                self._do_duty()
                self.num_steps += 1
        except (OSError, EOFError):
            if not self.stopping:
                raise

    def _reduce(self, gradients: Any, others: Any) -> None:
        """All-reduce over the tree, in place, piece by piece."""
        children = self.training.children(self.lines.name)
        parent = self.training.parents.get(self.lines.name)
        places = [slice(first, first + _CHUNK_ELEMENTS) for first in range(0, len(gradients), _CHUNK_ELEMENTS)]
        for place in places:
            for child in children:
                self.lines.receive_array(child, others[place])
                gradients[place] += others[place]
            if parent is not None:
                self.lines.send_array(parent, gradients[place])
        for place in places:
            if parent is not None:
                self.lines.receive_array(parent, gradients[place])
            for child in children:
                self.lines.send_array(child, gradients[place])
        assert gradients[0] == len(self.training.parents) + 1, "every node's gradient is in the sum once"

    def _do_duty(self) -> None:
        duty = self.duty
        if duty is None or duty.boundary != self.num_steps:
            return
        self.began_at, self.duty = time.monotonic(), None
        for send in duty.sends:
            threading.Thread(target=self.lines.send_state, args=(send,), name="send", daemon=True).start()
        if duty.waits and not self.go_on.wait(_PATIENCE_SECONDS):
            raise TimeoutError("nobody said go on")


class Node(Member):
    """A process in a namespace of the test bed, as the functions that it calls see it."""

    lines: Lines
    trainer: Trainer


def open_lines(node: Node, address: str) -> None:
    """Take connections from now on."""
    node.lines = Lines(node.name, address)


def connect(node: Node, addresses: Mapping[str, str], others: Sequence[str]) -> None:
    """Connect to the neighbours at `addresses`, and wait until those and all `others` are connected."""
    for peer, address in addresses.items():
        node.lines.connect(peer, address)
    node.lines.wait_for([*addresses, *others])


def hold(node: Node, path: Path) -> None:
    """Hold the state that all replicas hold."""
    with path.open("rb") as file:
        node.lines.state = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))


def make_room(node: Node, num_bytes: int) -> None:
    """Be ready to be filled; the pages are touched, so that nobody waits for the kernel to find them."""
    node.lines.state = np.zeros(num_bytes, dtype=np.uint8).data
    np.frombuffer(node.lines.state, dtype=np.uint8)[:: mmap.PAGESIZE] = 1


def train(node: Node, training: Training) -> None:
    """Begin to train."""
    node.trainer = Trainer(node.lines, training)
    threading.Thread(target=node.trainer.run, name="trainer", daemon=True).start()


def num_steps(node: Node) -> int:
    """How many steps are done."""
    return node.trainer.num_steps


def undertake(node: Node, duty: Duty) -> None:
    """Take a duty on."""
    node.trainer.go_on.clear()
    node.trainer.began_at = None
    node.trainer.duty = duty


def go_on(node: Node) -> None:
    """Train on after a duty that waits."""
    node.trainer.go_on.set()


def began_at(node: Node) -> float:
    """When the last duty was begun."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while node.trainer.began_at is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{node.name} never reached the boundary")
        time.sleep(0.001)
    return node.trainer.began_at


def fill(node: Node, num_bytes: int) -> float:
    """Wait until the state is complete; when it was."""
    node.lines.wait_for_state(num_bytes)
    return time.monotonic()


def digest(node: Node) -> str:
    """SHA-256 of the state that is held."""
    return hashlib.sha256(node.lines.state).hexdigest()


def step_ends(node: Node) -> list[float]:
    """When each step ended."""
    return list(node.trainer.ends)


def write_checkpoint(node: Node, path: Path) -> None:
    """Write the state to disk, and have it there: later readers read the disk, not the writer's memory."""
    with path.open("wb", buffering=0) as file:
        written = 0
        while written < len(node.lines.state):
            written += file.write(node.lines.state[written : written + _READ_BYTES])
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_checkpoint(_node: Node, path: Path) -> float:
    """Read the state from disk, into memory that is used again: so many copies need not fit one machine. When that was done."""
    piece = bytearray(_READ_BYTES)
    with path.open("rb", buffering=0) as file:
        while file.readinto(piece):
            pass
    return time.monotonic()


class Nodes(MemberCrew):
    """A process for each of some nodes of a test bed."""

    def __init__(self, testbed: Testbed, names: Sequence[str]) -> None:
        """Start them, each with its lines open and connected to its neighbours among `names`."""
        self.testbed = testbed
        super().__init__(Node, testbed.places(names), timeout_seconds=_PATIENCE_SECONDS)

    def make_ready(self) -> None:
        """Open their lines, and connect those."""
        self.ask({name: (open_lines, (self.testbed.address(name),)) for name in self.names})
        self.ask({name: (connect, self._peers(name)) for name in self.names})

    def _peers(self, name: str) -> tuple[dict[str, str], list[str]]:
        """Whom a node connects to, and whose connections it waits for."""
        wires = self.testbed.wires
        pairs = [wire.between for wire in wires if name in wire.between and set(wire.between) <= set(self.names)]
        return {b: self.testbed.address(b) for a, b in pairs if a == name}, [a for a, b in pairs if b == name]
