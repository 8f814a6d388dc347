"""A thread that does what a disk may hold up for ever, so that whoever asks for it waits no longer than they like to."""

import errno
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

from kintsugi.core.errors import UnavailableError
from kintsugi.runtime.presence import LOOK_SECONDS, Presence

T = TypeVar("T")


class HungError(Exception):
    """What a call waits for, a disk for example, does not come; its text says for how long."""


@contextmanager
def hung_named(folder: Path, way_out: str, *, field: str = "run") -> Iterator[None]:
    """Tells that the disk of a folder hangs as `UnavailableError`, with the way out beside mending it."""
    try:
        yield
    except HungError as error:
        raise UnavailableError(f"{error}: mend what its disk is on, {way_out}", field=field, value=str(folder)) from error


class Clerk:
    """Does one call after another, in the order in which they were asked for.

    Its thread is a daemon, unlike those of Python's executors: one that a disk holds up keeps the process from ending no more than
    from going on.
    """

    def __init__(self, name: str) -> None:
        """`name` is that of the thread, which begins with the first call."""
        self._name = name
        self._orders: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._moved_at = time.monotonic()
        self._is_left = False
        """Whether the thread was left to itself."""
        self._late: Future[Any] | None = None
        """What `asked_once` asked for last."""

    def do(self, call: Callable[[], T]) -> "Future[T]":
        """Have a call done after all others; what comes of it: HungError where the thread was left to itself."""
        answer: Future[T] = Future()
        if self._is_left:
            answer.set_exception(HungError("has not answered until it was left to itself"))
        else:
            self._put(lambda: _settle(answer, call))
        return answer

    def asked(self, call: Callable[[], T], seconds: float) -> T:
        """What comes of a call that is done after all others.

        Raises:
            HungError: nothing has moved for `seconds`; it is done all the same, once it can be.
        """
        return self._awaited(call, seconds).result()

    def asked_alone(self, call: Callable[[], T], seconds: float) -> T:
        """As `asked` says, and no thread is left: for who asks now and then, and may fork between.

        Raises:
            HungError: nothing has moved for `seconds`; then the thread is there until it is done.
        """
        answer = self._awaited(call, seconds)
        self.close(seconds)
        return answer.result()

    def asked_once(self, call: Callable[[], T], seconds: float) -> T:
        """As `asked_alone` says; while an earlier call is held up nothing more is asked for.

        Raises:
            OSError: what the call raised. Or the disk hangs; what was asked for first is done all the same, once it can be.
        """
        if self._late is not None and not self._late.done():
            raise OSError(errno.ETIMEDOUT, "the disk has not answered an earlier call yet")
        self._late = answer = self.do(call)
        if not self.awaits(answer, seconds):
            raise OSError(errno.ETIMEDOUT, f"the disk has not answered for {seconds:g} s")
        self.close(seconds)
        return answer.result()

    def moved(self) -> None:
        """A long call has come further; for the call itself."""
        self._moved_at = time.monotonic()

    def awaits(self, answer: "Future[T]", seconds: float) -> bool:
        """Wait for what comes of a call; False where nothing has moved for `seconds` in which this process was here."""
        since, presence = time.monotonic(), Presence()
        while not answer.done():
            left = self.left_seconds(since, seconds, presence)
            if left <= 0.0:
                return False
            wait([answer], timeout=min(left, LOOK_SECONDS))
        return True

    def left_seconds(self, since: float, seconds: float, presence: Presence) -> float:
        """Until what was asked for at `since` counts as held up: nothing moved for `seconds` in which this process was here."""
        return presence.left_seconds(max(since, self._moved_at), seconds)

    def close(self, seconds: float) -> bool:
        """Do what was asked for, and end; False where nothing has moved for `seconds`: the thread is left to itself then."""
        if self._thread is None or self._is_left:
            return not self._is_left
        self._is_left = not self.awaits(self.do(lambda: None), seconds)
        self._orders.put(None)
        if not self._is_left:
            self._thread.join(seconds)
            self._thread = None
        return not self._is_left

    def _awaited(self, call: Callable[[], T], seconds: float) -> "Future[T]":
        answer = self.do(call)
        if not self.awaits(answer, seconds):
            raise HungError(f"has not answered for {seconds:g} s")
        return answer

    def _put(self, order: Callable[[], None]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        self._orders.put(order)

    def _work(self) -> None:
        while (order := self._orders.get()) is not None:
            self.moved()
            order()
            self.moved()


def _settle(answer: "Future[T]", call: Callable[[], T]) -> None:
    try:
        came = call()
    except BaseException as error:  # whatever it is, who waits must learn of it
        answer.set_exception(error)
    else:
        answer.set_result(came)
