"""What strategies communicate by: sums over all workers of a membership, and questions between two of them."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import torch
import torch.distributed as dist
from torch import Tensor

from kintsugi.core import checks
from kintsugi.core.errors import CommunicationError, InvalidInputError
from kintsugi.core.version import PROTOCOL
from kintsugi.runtime import endings
from kintsugi.runtime.default_group import require_sums_in_host_memory
from kintsugi.runtime.synchronization.exchange import Address, Exchange, Handler, Kind
from restorer.waiter import Waiter, Waiting

TIMEOUT_SECONDS = 5.0
"""For a message between two workers; the sums over all have their group's own timeout."""
RETRY_SECONDS = 10.0
_END_SECONDS = 5.0
"""For a sum that is under way when the script ends."""
_ADDRESS_BYTES = 62


class Summing(Protocol):
    """A sum over all workers that is under way."""

    @property
    def is_over(self) -> bool:
        """Whether `wait` would return or raise at once."""

    def wait(self) -> Tensor:
        """The sum, in the tensor that was given; the same bits on all workers. Raises CommunicationError where a worker is gone."""


class Transport(Protocol):
    """The workers of one membership, by rank from 0 on."""

    rank: int
    num_workers: int

    def begin_sum(self, tensor: Tensor) -> Summing:
        """Sum a tensor of host memory in place, beside what this thread does next; in the order of the calls, the same on all."""

    def begin_mean(self, tensor: Tensor) -> Summing:
        """The same, divided by the number of workers."""

    def can_ask(self, rank: int) -> bool:
        """Whether a worker has not failed lately."""

    def ask(self, rank: int, kind: Kind, content: Tensor, answer: Tensor) -> bool:
        """Ask one worker; whether it answered, into `answer`. Raises CommunicationError, soon, where it is gone."""

    def serve(self, handler: Handler | None) -> None:
        """How to answer other workers' questions from now on."""

    def abort(self) -> None:
        """Free everybody who waits in this process; from any thread."""

    def close(self) -> None:
        """Give everything back; nothing may be under way."""


@dataclass(slots=True)
class _Sum:
    """A blocking sum as an operation to wait for."""

    all_reduce: Callable[[Tensor], object]
    tensor: Tensor
    divisor: int

    def wait(self) -> None:
        self.all_reduce(self.tensor)
        if self.divisor != 1:
            self.tensor.div_(self.divisor)


@dataclass(slots=True)
class _Summing:
    waiting: Waiting
    tensor: Tensor

    @property
    def is_over(self) -> bool:
        return self.waiting.operation is None

    def wait(self) -> Tensor:
        self.waiting.wait()
        return self.tensor


def _gone(_: Tensor) -> object:
    raise CommunicationError("the transport has ended with its script", field="transport")


class PeerTransport:
    """Sums by a collective library's group, questions over connections of its own."""

    def __init__(
        self,
        all_reduce: Callable[[Tensor], object],
        *,
        rank: int,
        num_workers: int,
        address: str = "127.0.0.1",
        largest_bytes: int = 2**34,
        timeout_seconds: float = TIMEOUT_SECONDS,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        """Waits for all workers, who tell each other their addresses.

        Args:
            all_reduce: sums a tensor in place over all workers, blocking; calls are made in one order on all of them. A
                RuntimeError counts as the loss of a worker.
            rank: of this worker, from 0 on.
            num_workers: of this membership.
            address: of this machine, where other workers reach it; at most 56 characters.
            largest_bytes: of a model that is taken from another worker.
            timeout_seconds: for a message between two workers.
            retry_seconds: for which a worker that did not answer is left alone.

        Raises:
            InvalidInputError: a number makes no sense, `address` is none of this machine, or most others are of another version of
                the protocol.
            CommunicationError: a worker is gone, or goes because it is of another version.
        """
        _require_place(rank, num_workers)
        checks.count("largest_bytes", largest_bytes)
        checks.positive("timeout_seconds", timeout_seconds)
        checks.seconds("retry_seconds", retry_seconds)
        self.rank, self.num_workers = rank, num_workers
        self._all_reduce = all_reduce
        self._exchange = Exchange(
            address, largest_bytes=largest_bytes, timeout_seconds=timeout_seconds, retry_seconds=retry_seconds
        )
        self._waiter = Waiter(f"sums-{rank}")
        try:
            self._addresses = self._all_addresses(self._exchange.address)
        except BaseException:
            self.close()
            raise
        endings.before_exit(self._end)

    @classmethod
    def of_process_group(cls, address: str = "127.0.0.1") -> Self:
        """Over torch.distributed's default group, as torchrun makes it: of "gloo", or on CUDA devices of "cpu:gloo,cuda:nccl".

        Raises:
            InvalidInputError: there is none, or it cannot sum in host memory.
        """
        if not dist.is_initialized():
            raise InvalidInputError("call torch.distributed.init_process_group before, or give a transport", field="transport")
        require_sums_in_host_memory()
        return cls(dist.all_reduce, rank=dist.get_rank(), num_workers=dist.get_world_size(), address=address)

    @classmethod
    def alone(cls) -> Self:
        """A membership of one worker."""
        return cls(lambda _: None, rank=0, num_workers=1)

    def begin_sum(self, tensor: Tensor) -> Summing:
        """Sum in place, in a thread that can be left behind."""
        return self._begin(tensor, divisor=1)

    def begin_mean(self, tensor: Tensor) -> Summing:
        """The same, divided in that thread."""
        return self._begin(tensor, divisor=self.num_workers)

    def can_ask(self, rank: int) -> bool:
        """Whether a worker has not failed lately."""
        return self._exchange.can_ask(self._addresses[rank])

    def ask(self, rank: int, kind: Kind, content: Tensor, answer: Tensor) -> bool:
        """Ask one worker over a connection that is kept; for one thread at a time."""
        return self._exchange.ask(self._addresses[rank], kind, bytes_of(content), bytes_of(answer))

    def serve(self, handler: Handler | None) -> None:
        """Answer by `handler`, or refuse."""
        self._exchange.serve(handler)

    def abort(self) -> None:
        """Free waiters of sums and of questions."""
        self._waiter.abort()
        self._exchange.close()

    def close(self) -> None:
        """Close the connections and let the threads end."""
        self._exchange.close()
        self._waiter.close()
        endings.is_over(self._end)

    def _end(self) -> None:
        self.abort()
        self.close()
        self._waiter.await_end(_END_SECONDS)
        self._all_reduce = _gone  # with a group of its own, whose threads would outlive the interpreter, and abort the process

    def _begin(self, tensor: Tensor, *, divisor: int) -> Summing:
        return _Summing(self._waiter.begin(_Sum(self._all_reduce, tensor, divisor)), tensor)

    def _all_addresses(self, own: Address) -> list[Address]:
        """Everybody's address, by rank, once all are found to be of one version."""
        rows = torch.zeros(self.num_workers, _ADDRESS_BYTES + 1, dtype=torch.uint8)
        text = f"{own[1]} {own[0]}".encode()
        if len(text) > _ADDRESS_BYTES:
            raise InvalidInputError("longer than 56 characters; give a numeric address", field="address", value=own[0])
        rows[self.rank, : len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        rows[self.rank, _ADDRESS_BYTES] = PROTOCOL
        self.begin_sum(rows).wait()
        _require_one_version(rows[:, _ADDRESS_BYTES].tolist(), self.rank)
        told = (bytes(row.tolist()).rstrip(b"\0").decode().split(" ", 1) for row in rows[:, :_ADDRESS_BYTES])
        return [(host, int(port)) for port, host in told]


def _require_place(rank: int, num_workers: int) -> None:
    checks.count("num_workers", num_workers)
    checks.whole("rank", rank)
    if not 0 <= rank < num_workers:
        raise InvalidInputError(f"must be from 0 to {num_workers - 1}", field="rank", value=rank)


def _require_one_version(versions: Sequence[int], rank: int) -> None:
    """Let those go who are of another version than most, or among as many than the first of them; the others find them gone."""
    usual = Counter(versions).most_common(1)[0][0]
    odd = [other for other, version in enumerate(versions) if version != usual]
    if rank in odd:
        message = f"is version {versions[rank]} here and {usual} with most workers; run the same version of Kintsugi on all of them"
        raise InvalidInputError(message, field="protocol", value=versions[rank])
    if odd:
        message = f"ranks {odd} speak version {versions[odd[0]]} of the protocol, most workers {usual}; run the same one on all"
        raise CommunicationError(message, field="protocol", value=versions[odd[0]])


def bytes_of(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor of host memory, not copied."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().data
