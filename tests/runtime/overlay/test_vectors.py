"""Memory of vectors that are sent is used again, and never too early."""

import threading

import numpy as np
import torch

from kintsugi.runtime.overlay.reduction import as_bytes
from kintsugi.runtime.overlay.vectors import VectorPool


def address(vector: np.ndarray) -> int:
    return vector.__array_interface__["data"][0]


def test_memory_is_used_again_once_the_vector_is_gone():
    pool = VectorPool(1_000, torch.float64)
    found = set()
    for _ in range(10):
        own, mean = pool.take(), pool.take()
        assert address(own) != address(mean)
        found |= {address(own), address(mean)}
        del own, mean
    assert len(found) == 2


def test_bytes_that_wait_to_be_sent_keep_their_memory():
    pool = VectorPool(1_000, torch.float32)
    vector = pool.take()
    vector.fill(1.0)
    waiting = as_bytes(vector[500:600])
    del vector
    for _ in range(4):
        pool.take().fill(2.0)
    assert np.frombuffer(waiting, np.float32).tolist() == [1.0] * 100
    lent = torch.from_numpy(pool.take())
    later = pool.take()
    lent.zero_()
    later.fill(3.0)
    assert not lent.any()


def test_what_many_held_at_once_goes_back_to_the_system():
    pool = VectorPool(4, torch.float32)
    many = [pool.take() for _ in range(50)]
    assert len({address(one) for one in many}) == 50
    del many
    held = pool.take()
    assert len(pool._spare) + len(pool._lent) == 2
    assert held.shape == (4,)


def test_threads_get_memory_of_their_own():
    pool, failures = VectorPool(64, torch.float64), []

    def work(number: float) -> None:
        for _ in range(500):
            vector = pool.take()
            vector.fill(number)
            if not (vector == number).all():
                failures.append(number)

    threads = [threading.Thread(target=work, args=(float(number),)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120.0)
    assert not failures
