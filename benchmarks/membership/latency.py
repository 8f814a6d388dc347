"""From a loss to the restart: the ring, and a coordinator that is told of ended processes and tells everybody (the baseline).

Every member is a process of its own. The time runs from the moment before the first signal is sent to the last survivor's
restart with the right members, on the one monotonic clock of the machine.
"""

import multiprocessing
import os
import random
import select
import signal
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess

from kintsugi.core.cluster import worker_name
from kintsugi.runtime.ring.callbacks import Callbacks
from kintsugi.runtime.ring.connection import Address
from kintsugi.runtime.ring.links import listener
from kintsugi.runtime.ring.messages import Agreement
from kintsugi.runtime.ring.node import RingNode

WAIT_SECONDS = 60.0
SETTLE_SECONDS = 0.5
"""Between the start of the members and the losses: longer than the first connections take."""

_FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True, slots=True)
class Setting:
    """How many members there are, and how many of them are lost at once."""

    num_members: int
    num_lost: int


@dataclass(frozen=True, slots=True)
class _Members:
    """Forked processes, and this process's end of the pipe to each."""

    processes: dict[str, ForkProcess] = field(default_factory=dict)
    pipes: dict[str, Connection] = field(default_factory=dict)

    def fork(self, name: str, target: Callable[..., None], arguments: Sequence[object]) -> None:
        """Start one more; it is given its name, its end of the pipe, the ends that are not its own, and the arguments."""
        self.pipes[name], theirs = _FORK.Pipe()
        process = _FORK.Process(target=target, args=(name, theirs, tuple(self.pipes.values()), *arguments), daemon=True)
        process.start()
        self.processes[name] = process
        theirs.close()

    def pids(self, names: Sequence[str]) -> list[int]:
        """Process ids."""
        return [self.processes[name].pid or 0 for name in names]

    def end(self) -> None:
        """End all of them."""
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.join(WAIT_SECONDS)
        for pipe in self.pipes.values():
            pipe.close()


@contextmanager
def _forked(names: Sequence[str], target: Callable[..., None], *arguments: object) -> Iterator[_Members]:
    """A process for every name, each forked behind those before it; all end with the block."""
    members = _Members()
    try:
        for name in names:
            members.fork(name, target, arguments)
        yield members
    finally:
        members.end()


def ring_seconds(setting: Setting, seed: int) -> float:
    """From the losses to the last survivor's restart, by the ring, in seconds.

    One member more is lost before: freshly forked processes copy every page of memory that they touch for the first time.
    """
    names = tuple(worker_name(index) for index in range(setting.num_members + 1))
    listening = {name: listener("127.0.0.1") for name in names}
    addresses = {name: found.getsockname()[:2] for name, found in listening.items()}
    with _forked(names, _ring_member, listening, addresses) as members:
        for found in listening.values():
            found.close()  # whoever ends must leave nobody listening at its port
        _heard(members.pipes.values(), len(names))
        time.sleep(SETTLE_SECONDS)
        left = _without(names[-1:], names, members)[0]
        time.sleep(SETTLE_SECONDS)
        return _without(_chosen(left, setting.num_lost, seed), left, members)[1]


def _without(lost: Sequence[str], names: Sequence[str], members: _Members) -> tuple[tuple[str, ...], float]:
    """End some members; who is left once all of them know that, and after how many seconds."""
    left = tuple(name for name in names if name not in lost)
    began = time.monotonic()
    _strike(members.pids(lost))
    return left, _last(members.pipes, left) - began


def coordinated_seconds(setting: Setting, seed: int) -> float:
    """The same by a coordinator: it waits for processes, stops the survivors, hears all of them, and restarts them."""
    names = tuple(worker_name(index) for index in range(setting.num_members))
    with _forked(names, _told_member) as members:
        _heard(members.pipes.values(), len(names))
        lost = _chosen(names, setting.num_lost, seed)
        striking = threading.Thread(target=_strike, args=(members.pids(lost),))
        began = time.monotonic()
        striking.start()
        _coordinate(members.pipes, members.processes, len(names) - len(lost))
        striking.join()
        left = [pipe for name, pipe in members.pipes.items() if name not in lost]
        return max(answered for _, answered in _heard(left, len(left))) - began


def _strike(pids: Sequence[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def _coordinate(pipes: Mapping[str, Connection], processes: Mapping[str, ForkProcess], num_left: int) -> None:
    """Stop, hear and restart the survivors whenever processes have ended, until so many are left."""
    left = dict(processes)
    while len(left) > num_left:
        wait([process.sentinel for process in left.values()], WAIT_SECONDS)
        left = {name: process for name, process in left.items() if process.is_alive()}
        for name in left:
            _tell(pipes[name], "stop")
        contributions = {name: pipes[name].recv() for name in left if pipes[name].poll(1.0) and _is_readable(pipes[name])}
        for name in contributions:
            _tell(pipes[name], ("restart", len(left) == num_left, contributions))


def _is_readable(pipe: Connection) -> bool:
    """Whether something is there besides the end of a process."""
    poller = select.poll()
    poller.register(pipe.fileno(), select.POLLIN)
    return all(not events & select.POLLHUP for _, events in poller.poll(0))


def _tell(pipe: Connection, message: object) -> None:
    try:
        pipe.send(message)
    except (BrokenPipeError, ConnectionResetError):
        return  # it ended meanwhile; its sentinel tells that


def _told_member(name: str, pipe: Connection, others: Sequence[Connection]) -> None:
    for other in others:
        other.close()
    pipe.send((name, time.monotonic()))
    while True:
        message = pipe.recv()
        if message == "stop":
            pipe.send((name, 0))
        elif message[1]:
            pipe.send((name, time.monotonic()))


def _ring_member(
    name: str,
    pipe: Connection,
    others: Sequence[Connection],
    listening: Mapping[str, socket.socket],
    addresses: Mapping[str, Address],
) -> None:
    for other, found in listening.items():
        if other != name:
            found.close()
    for connection in others:
        connection.close()
    callbacks = Callbacks(on_agreement=lambda agreement: pipe.send((agreement.members, time.monotonic())))
    with RingNode(name, Agreement(0, tuple(addresses)), listening[name], addresses, callbacks, committed_step=0) as node:
        node.start()
        pipe.send((name, time.monotonic()))
        pipe.poll(WAIT_SECONDS)


def _chosen(names: Sequence[str], num_lost: int, seed: int) -> list[str]:
    return random.Random(seed).sample(names, num_lost)


def _heard(pipes: Iterable[Connection], count: int) -> list[tuple[object, float]]:
    """The next message of so many pipes."""
    waiting = list(pipes)
    found: list[tuple[object, float]] = []
    while len(found) < count:
        ready = [pipe for pipe in wait(waiting, WAIT_SECONDS) if isinstance(pipe, Connection)]
        if not ready:
            raise TimeoutError(f"{count - len(found)} members say nothing")
        found += [pipe.recv() for pipe in ready]
        waiting = [pipe for pipe in waiting if pipe not in ready]
    return found


def _last(pipes: Mapping[str, Connection], left: tuple[str, ...]) -> float:
    """When the last of the survivors went on with exactly them."""
    times: dict[str, float] = {}
    while len(times) < len(left):
        for name in left:
            if name not in times:
                if not pipes[name].poll(WAIT_SECONDS):
                    raise TimeoutError(f"{name} does not go on")
                members, at = pipes[name].recv()
                if members == left:
                    times[name] = at
    return max(times.values())


def medians(setting: Setting, repeats: int) -> tuple[list[float], list[float]]:
    """Seconds of every repetition, in turns: the ring's and the coordinator's."""
    ring, coordinated = [], []
    for seed in range(repeats):
        ring.append(ring_seconds(setting, seed))
        coordinated.append(coordinated_seconds(setting, seed))
    return ring, coordinated


def row(setting: Setting, repeats: int) -> tuple[str, ...]:
    """Losses, medians and maxima in milliseconds, and their ratio."""
    ring, coordinated = medians(setting, repeats)
    ours, theirs = statistics.median(ring), statistics.median(coordinated)
    figures = (ours, max(ring), theirs, max(coordinated))
    return (
        str(setting.num_members),
        str(setting.num_lost),
        *(f"{1e3 * seconds:.1f}" for seconds in figures),
        f"{ours / theirs:.2f}",
    )
