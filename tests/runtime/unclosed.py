"""Scripts that end, or fail, while threads are at work for them: `python -m tests.runtime.unclosed WHAT [raises]`."""

import sys
import threading

import torch
from torch import nn

from kintsugi.runtime.overlay.committed import Sum
from kintsugi.runtime.overlay.options import OverlayOptions
from kintsugi.runtime.overlay.snapshot import Snapshot
from kintsugi.runtime.overlay.trained import TrainedState
from kintsugi.runtime.synchronization.optimizer import SynchronizedOptimizer
from kintsugi.runtime.synchronization.strategies import ModelAveraging
from tests.runtime.synchronization.workers import Link

NUM_STEPS = 4


def large() -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model that takes a while to copy."""
    model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(20)])
    return model, torch.optim.Adam(model.parameters())


def copying() -> None:
    """A worker copies its state for another one."""
    state = TrainedState(*large(), OverlayOptions()).packed()
    Snapshot(state, Sum(0, 0), ((0, state.num_bytes),), is_whole=True)


def averaging() -> None:
    """A worker averages its model with another one, which is a thread and ends its steps as early."""
    link = Link()

    def train(rank: int) -> None:
        model, optimizer = large()
        synchronized = SynchronizedOptimizer(optimizer, ModelAveraging(), link.transport("all", rank, 2))
        for _ in range(NUM_STEPS):
            model(torch.ones(1024)).sum().backward()
            synchronized.step()

    other = threading.Thread(target=train, args=(1,), daemon=True)
    other.start()
    train(0)
    other.join(120.0)


def main() -> None:
    """Do one of them, and end as told."""
    torch.set_num_threads(1)
    {"copying": copying, "averaging": averaging}[sys.argv[1]]()
    if sys.argv[2:] == ["raises"]:
        raise RuntimeError("a mistake of the script")


if __name__ == "__main__":
    main()
