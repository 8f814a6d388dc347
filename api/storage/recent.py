"""A bounded memory of immutable things; safe for several threads."""

from collections.abc import Hashable
from threading import Lock
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """The things that were put last, at most `capacity` of them."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._items: dict[K, V] = {}
        self._lock = Lock()

    def get(self, key: K) -> V | None:
        """What was put under `key`, unless it was forgotten."""
        return self._items.get(key)

    def put(self, key: K, value: V) -> None:
        """Remember `value`; the oldest is forgotten where there is no room."""
        with self._lock:
            self._items.pop(key, None)
            while len(self._items) >= self._capacity:
                del self._items[next(iter(self._items))]
            self._items[key] = value
