"""Processes that connect and talk as workers do, to be timed: the runtime's own groups and transport, without a job.

The process that starts them is their control plane. Every wait is bounded and every process ends on every path.
"""

import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from types import TracebackType
from typing import NoReturn

import torch

from kintsugi.core.cluster import worker_name
from kintsugi.core.errors import UnavailableError
from kintsugi.runtime.messages import Delivered, Published
from kintsugi.runtime.processes import forkserver
from kintsugi.runtime.worker import WorkerOptions
from restorer.groups import Groups, Rendezvous, members_of
from restorer.transport import TensorSpec

_ENDED = "a process ended in the middle of a measurement"


@dataclass(frozen=True, slots=True)
class _Connect:
    """Build the groups of an attempt: all ranks, and the pairs of a grid with two pipelines."""

    attempt: int
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Exchange:
    """Send `num_bytes` to a peer and take as many back, `repeats` times; the one that `begins` sends first."""

    peer: str
    begins: bool
    num_bytes: int
    repeats: int


@dataclass(frozen=True, slots=True)
class _Reduce:
    """All-reduce two numbers over all ranks, `repeats` times."""

    repeats: int


_Request = _Connect | _Exchange | _Reduce


@dataclass(frozen=True, slots=True)
class _Answer:
    """Seconds of every repetition; empty where nothing is timed."""

    seconds: tuple[float, ...]


class Peers(AbstractContextManager["Peers"]):
    """Processes that connect and talk on request; this process hands their rendezvous keys over."""

    def __init__(self, num_ranks: int, *, timeout_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds
        self._attempt = 0
        self._connections: dict[str, Connection] = {}
        self._processes: list[ForkServerProcess] = []
        context = forkserver()
        try:
            for index in range(num_ranks):
                self._start(worker_name(index), context)
        except BaseException:
            self.close()
            raise

    def _start(self, name: str, context: ForkServerContext) -> None:
        ours, theirs = context.Pipe()
        self._connections[name] = ours
        process = context.Process(target=_peer_main, args=(name, theirs), name=f"kintsugi-probe-{name}", daemon=True)
        try:
            process.start()
        finally:
            theirs.close()
        self._processes.append(process)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids, in rank order."""
        return tuple(process.pid for process in self._processes if process.pid is not None)

    def close(self) -> None:
        """End all processes."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join(self._timeout_seconds)
        for connection in self._connections.values():
            connection.close()

    def connect(self) -> float:
        """Build new groups over all ranks; seconds from asking to the last one's answer."""
        self._attempt += 1
        members = tuple(self._connections)
        began = time.monotonic()
        self._ask(dict.fromkeys(members, _Connect(self._attempt, members)))
        return time.monotonic() - began

    def message_seconds(self, num_bytes: int, repeats: int) -> float:
        """Half a round trip between the first two ranks, in seconds: the first decile."""
        first, second = tuple(self._connections)[:2]
        requests = {
            first: _Exchange(second, begins=True, num_bytes=num_bytes, repeats=repeats),
            second: _Exchange(first, begins=False, num_bytes=num_bytes, repeats=repeats),
        }
        return _undisturbed(self._ask(requests)[first].seconds) / 2

    def all_reduce_seconds(self, repeats: int) -> float:
        """An all-reduce of two numbers over all ranks, in seconds: the first decile of the slowest rank's times."""
        answers = self._ask(dict.fromkeys(self._connections, _Reduce(repeats)))
        return _undisturbed([max(of_rank) for of_rank in zip(*(a.seconds for a in answers.values()), strict=True)])

    def _ask(self, requests: Mapping[str, _Request]) -> dict[str, _Answer]:
        """Send requests, hand keys over until all have answered."""
        for name, request in requests.items():
            self._tell(name, request)
        names = {connection: name for name, connection in self._connections.items()}
        answers: dict[str, _Answer] = {}
        deadline = time.monotonic() + self._timeout_seconds
        while answers.keys() < requests.keys():
            ready = wait(list(names), max(deadline - time.monotonic(), 0.0))
            if not ready:
                silent = ", ".join(sorted(requests.keys() - answers.keys()))
                raise UnavailableError(f"no answer within {self._timeout_seconds:g} s", field="worker", value=silent)
            for connection in ready:
                assert isinstance(connection, Connection)
                self._take(names[connection], connection, answers)
        return answers

    def _take(self, name: str, connection: Connection, answers: dict[str, _Answer]) -> None:
        try:
            message: Published | _Answer = connection.recv()
        except (EOFError, OSError) as error:
            raise UnavailableError(_ENDED, field="worker", value=name) from error
        if isinstance(message, _Answer):
            answers[name] = message
            return
        for member in members_of(message.key):
            self._tell(member, Delivered(message.attempt, message.key, message.value))

    def _tell(self, name: str, message: Delivered | _Request) -> None:
        try:
            self._connections[name].send(message)
        except OSError as error:
            raise UnavailableError(_ENDED, field="worker", value=name) from error


def _peer_main(name: str, connection: Connection) -> None:
    """Entry point of a process; it ends with its pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    _Peer(name, connection).run()


class _Peer:
    """One process: a listener that hands keys over, and a main thread that measures."""

    def __init__(self, name: str, connection: Connection) -> None:
        self._name = name
        self._connection = connection
        self._send_lock = threading.Lock()
        self._requests: queue.SimpleQueue[_Request] = queue.SimpleQueue()
        self._rendezvous: Rendezvous | None = None
        self._groups: Groups | None = None

    def run(self) -> NoReturn:
        threading.Thread(target=self._listen, name="listener", daemon=True).start()
        while True:
            request = self._requests.get()
            self._send(_Answer(self._measure(request)))

    def _send(self, message: Published | _Answer) -> None:
        with self._send_lock:
            self._connection.send(message)

    def _listen(self) -> None:
        try:
            while True:
                message: Delivered | _Request = self._connection.recv()
                if isinstance(message, Delivered):
                    assert self._rendezvous is not None
                    self._rendezvous.deliver(message.key, message.value)
                    continue
                if isinstance(message, _Connect):
                    self._rendezvous = Rendezvous(self._publisher(message.attempt))
                self._requests.put(message)
        except (EOFError, OSError):
            os._exit(0)

    def _publisher(self, attempt: int) -> Callable[[str, bytes], None]:
        return lambda key, value: self._send(Published(attempt, key, value))

    def _measure(self, request: _Request) -> tuple[float, ...]:
        if isinstance(request, _Connect):
            self._connect(request)
            return ()
        assert self._groups is not None
        if isinstance(request, _Exchange):
            return self._exchange(request, self._groups)
        numbers = torch.zeros(2, dtype=torch.float64)
        groups = self._groups
        return _repeated(lambda: groups.all_reduce(numbers), request.repeats)

    def _connect(self, request: _Connect) -> None:
        assert self._rendezvous is not None
        if self._groups is not None:
            self._groups.close()
        self._groups = Groups(self._name, request.members, _pairs(request.members), self._rendezvous, f"attempt{request.attempt}")
        options = WorkerOptions()
        self._groups.build(
            address=options.address,
            timeout_seconds=options.connect_timeout_seconds,
            operation_timeout_seconds=options.operation_timeout_seconds,
        )

    def _exchange(self, request: _Exchange, groups: Groups) -> tuple[float, ...]:
        transport = groups.transport(torch.device("cpu"))
        spec = TensorSpec((request.num_bytes,), torch.uint8)
        payload = torch.zeros(spec.shape, dtype=spec.dtype)

        def round_trip() -> None:
            receiving = transport.receive(spec, request.peer, 0)
            if not request.begins:
                receiving.wait()
            sending = transport.send(payload, request.peer, 0)
            if request.begins:
                receiving.wait()
            sending.wait()

        return _repeated(round_trip, request.repeats)


def _undisturbed(seconds: Sequence[float]) -> float:
    """The first decile: a link's own time, whatever else the machine does for most of the repetitions."""
    return sorted(seconds)[len(seconds) // 10]


def _pairs(members: Sequence[str]) -> list[tuple[str, ...]]:
    """Every rank with its opposite in a grid of two pipelines."""
    half = len(members) // 2
    return list(zip(members[:half], members[half:], strict=False))


def _repeated(action: Callable[[], None], repeats: int) -> tuple[float, ...]:
    """Seconds of every repetition after one that does not count."""
    action()
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - began)
    return tuple(seconds)
