"""Processes that connect and talk as workers do, to be timed: the runtime's own groups and transport, without a job."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import NoReturn

import torch

from kintsugi.core.cluster import worker_name
from kintsugi.runtime.measuring.crew import Crew, CrewMember
from kintsugi.runtime.options import WorkerOptions
from restorer.groups import Groups
from restorer.transport import TensorSpec


@dataclass(frozen=True, slots=True)
class _Exchange:
    """Send `num_bytes` on `device` to a peer and take as many back, `repeats` times; the one that `begins` sends first."""

    peer: str
    begins: bool
    device: str
    num_bytes: int
    repeats: int


@dataclass(frozen=True, slots=True)
class _Reduce:
    """All-reduce two numbers over all ranks, `repeats` times."""

    repeats: int


_Request = _Exchange | _Reduce


class Peers(Crew):
    """Processes that time what they are asked to."""

    def __init__(self, num_ranks: int, *, timeout_seconds: float) -> None:
        super().__init__(timeout_seconds=timeout_seconds)
        try:
            for index in range(num_ranks):
                self.start(worker_name(index), _peer_main, worker_name(index))
        except BaseException:
            self.close()
            raise

    def connect(self) -> float:
        """Build new groups over all ranks and the pairs of a grid; seconds from asking to the last one's answer."""
        began = time.monotonic()
        self.build(self.names, tuple(_pairs(self.names)))
        return time.monotonic() - began

    def message_seconds(self, num_bytes: int, repeats: int, device: str = "cpu") -> float:
        """Half a round trip between the first two ranks, from `device` to `device`, in seconds: the first decile."""
        first, second = self.names[:2]
        requests = {
            first: _Exchange(second, begins=True, device=device, num_bytes=num_bytes, repeats=repeats),
            second: _Exchange(first, begins=False, device=device, num_bytes=num_bytes, repeats=repeats),
        }
        return _undisturbed(self.ask(requests)[first]) / 2

    def all_reduce_seconds(self, repeats: int) -> float:
        """An all-reduce of two numbers over all ranks, in seconds: the first decile of the slowest rank's times."""
        answers = self.ask(dict.fromkeys(self.names, _Reduce(repeats)))
        return _undisturbed([max(of_rank) for of_rank in zip(*answers.values(), strict=True)])


def _peer_main(name: str, connection: Connection) -> NoReturn:
    peer = _Peer(name, WorkerOptions().address, connection)
    peer.run(peer.measure)


class _Peer(CrewMember):
    """One process that measures."""

    def measure(self, request: _Request) -> tuple[float, ...]:
        """Seconds of every repetition."""
        assert self.groups is not None
        if isinstance(request, _Exchange):
            return self._exchange(request, self.groups)
        numbers, groups = torch.zeros(2, dtype=torch.float64), self.groups
        return _repeated(lambda: groups.all_reduce(numbers), request.repeats)

    def _exchange(self, request: _Exchange, groups: Groups) -> tuple[float, ...]:
        transport = groups.transport(torch.device(request.device))
        spec = TensorSpec((request.num_bytes,), torch.uint8)
        payload = torch.zeros(spec.shape, dtype=spec.dtype, device=request.device)

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
