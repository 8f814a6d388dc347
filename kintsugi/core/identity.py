"""Results kept by identity: to hash an immutable thing of hundreds of parts takes longer than all that is asked of it."""

from collections.abc import Callable
from functools import wraps
from threading import Lock
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def kept_by_identity(capacity: int) -> Callable[[Callable[[K], V]], Callable[[K], V]]:
    """A decorator that keeps the results for the `capacity` immutable things that were asked for last; safe for threads."""

    def decorate(compute: Callable[[K], V]) -> Callable[[K], V]:
        kept: dict[int, tuple[K, V]] = {}
        lock = Lock()

        @wraps(compute)
        def result(thing: K) -> V:
            found = kept.get(id(thing))  # what is kept is alive, so that no other thing has its identity
            if found is not None:
                return found[1]
            value = compute(thing)
            with lock:
                while len(kept) >= capacity:
                    del kept[next(iter(kept))]
                kept[id(thing)] = thing, value
            return value

        return result

    return decorate
