"""Workers as threads of one process: real gloo groups and real connections, so that every worker can be looked into."""

import contextlib
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from kintsugi.runtime.synchronization import PeerTransport
from restorer.gloo import connect
from tests.patience import PATIENCE_SECONDS


class Link:
    """Memberships of threads: each needs a store of its own."""

    def __init__(self) -> None:
        self._stores: dict[str, dist.HashStore] = {}
        self._transports: list[PeerTransport] = []
        self._lock = threading.Lock()

    def group(self, name: str, rank: int, size: int):
        with self._lock:
            store = self._stores.setdefault(name, dist.HashStore())
        store.set_timeout(timedelta(seconds=PATIENCE_SECONDS))
        return connect(
            store,
            name,
            rank=rank,
            size=size,
            address="127.0.0.1",
            timeout_seconds=PATIENCE_SECONDS,
            reduction_timeout_seconds=PATIENCE_SECONDS,
        )

    def transport(self, name: str, rank: int, size: int, *, fail: Callable[[torch.Tensor], None] | None = None, **options):
        """`fail` sees every tensor before it is summed, and raises where this worker's part in it is to fail."""
        transport = PeerTransport.alone() if size == 1 else self._over_gloo(name, rank, size, fail, options)
        with self._lock:
            self._transports.append(transport)
        return transport

    def close(self) -> None:
        """Ends what workers left open, as those that were lost do."""
        for transport in self._transports:
            transport.close()

    def _over_gloo(self, name: str, rank: int, size: int, fail, options: dict[str, Any]) -> PeerTransport:
        group = self.group(name, rank, size)

        def all_reduce(tensor: torch.Tensor) -> None:
            if fail is not None:
                fail(tensor)
            group.allreduce([tensor]).wait()

        return PeerTransport(all_reduce, rank=rank, num_workers=size, **{"timeout_seconds": PATIENCE_SECONDS, **options})


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


def entries(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Copies of all that the optimizer keeps."""
    return [value.clone() for state in optimizer.state.values() for value in state.values()]


def together(*workers: Callable[[], Any]) -> list[Any]:
    """What the workers return, each run in a thread of its own; the first error of any."""
    outcomes: list[Any] = [None] * len(workers)
    errors: list[BaseException] = []

    def work(index: int) -> None:
        try:
            outcomes[index] = workers[index]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(index,), daemon=True) for index in range(len(workers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * PATIENCE_SECONDS)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), "a worker hangs"
    return outcomes


def crew(size: int, main: Callable[[int, Link], Any]) -> list[Any]:
    """`main(rank, link)` on so many workers."""
    with contextlib.closing(Link()) as link:
        return together(*[lambda rank=rank: main(rank, link) for rank in range(size)])


_SEEDING = threading.Lock()
"""torch's global generator is one for all threads."""


def model_of(seed: int = 0) -> nn.Module:
    with _SEEDING:
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)).double()


def samples(num_samples: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(num_samples, 4, generator=generator, dtype=torch.float64)
    return inputs, torch.stack([inputs[:, 0] * inputs[:, 1], inputs[:, 2].sin()], dim=1)


BATCH = 12


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, step: int, rank: int = 0, size: int = 1) -> float:
    """One step on this worker's share of the step's batch."""
    loss = backward(model, optimizer, step, rank, size)
    optimizer.step()
    return loss


def backward(model: nn.Module, optimizer: torch.optim.Optimizer, step: int, rank: int = 0, size: int = 1) -> float:
    inputs, targets = (values.to(next(model.parameters()).device) for values in samples())
    chosen = [(step * BATCH + index) % len(inputs) for index in range(BATCH)][rank::size]
    optimizer.zero_grad()
    loss = (model(inputs[chosen]) - targets[chosen]).square().mean()
    loss.backward()
    return float(loss.detach())


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def is_equal(models: Sequence[nn.Module]) -> bool:
    return all(torch.equal(flat(models[0]), flat(model)) for model in models[1:])


class Loss:
    """Fails the sums of one worker from some moment on, as if it lost its peers."""

    def __init__(self, num_left: int | None) -> None:
        self.num_left = num_left

    def __call__(self, tensor: torch.Tensor) -> None:
        if self.num_left is None:
            return
        self.num_left -= 1
        if self.num_left < 0:
            raise RuntimeError("connection closed by peer")


def losing(link, name, rank, size, lose):
    """A transport that `lose` is told each sum of once it is there: where it raises, the others have that sum all the same."""
    group = link.group(name, rank, size)

    def all_reduce(tensor: torch.Tensor) -> None:
        group.allreduce([tensor]).wait()
        lose(tensor)

    return PeerTransport(all_reduce, rank=rank, num_workers=size)
