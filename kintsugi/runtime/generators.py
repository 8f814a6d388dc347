"""What arithmetic draws from: Python's generator, NumPy's, and torch's of the CPU and of one more device.

No others of torch: `torch.manual_seed` takes a stack trace for every kind of device that was not used yet, which takes longer
than a small layer, and a step seeds once for every layer of every micro-batch.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from restorer.nccl_requirements import numbered


def mixed(value: int, *parts: int) -> int:
    """A number to seed with that depends on all of these (63 bits); `value` has 32."""
    for part in parts:
        value = (value * 6364136223846793005 + part + 1442695040888963407) & 0x7FFFFFFFFFFFFFFF
        value ^= value >> 29
    return value


def seed(number: int, device: torch.device) -> None:
    """Have all of them begin at a number of 63 bits."""
    seed_host(number)
    if device.type == "cuda":
        _of(device).manual_seed(number)


def seed_host(number: int) -> None:
    """Have those of the CPU begin at a number of 63 bits."""
    random.seed(number)
    np.random.seed(number % 2**32)
    torch.default_generator.manual_seed(number)


@contextmanager
def seeded(number: int, device: torch.device) -> Iterator[None]:
    """What is drawn within depends on the number alone; afterwards they go on as if nothing had been drawn."""
    python, numpy, host = random.getstate(), np.random.get_state(legacy=False), torch.default_generator.get_state()
    own = _of(device).get_state() if device.type == "cuda" else None
    seed(number, device)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.default_generator.set_state(host)
        if own is not None:
            _of(device).set_state(own)


def _of(device: torch.device) -> torch.Generator:
    torch.cuda.init()
    return torch.cuda.default_generators[numbered(device).index]
