"""Processes that run out of descriptors, or have very many."""

import os
import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch


@contextmanager
def no_descriptors() -> Iterator[socket.socket]:
    """A socket that is open already, to call somebody with; nobody in this process gets another one in the block."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as caller:
        free = os.dup(caller.fileno())
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, before[1]))
        try:
            yield caller
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)


@contextmanager
def many_descriptors(number: int) -> Iterator[None]:
    """Every file that is opened in the block has a descriptor above `number`."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], number + 200), before[1]))
    with ExitStack() as held:
        held.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        while (taken := os.open(os.devnull, os.O_RDONLY)) <= number:
            held.callback(os.close, taken)
        os.close(taken)
        yield


@contextmanager
def no_threads(named: str) -> Iterator[None]:
    """No thread whose name begins so can be started."""
    start = threading.Thread.start

    def begin(thread: threading.Thread) -> None:
        if thread.name.startswith(named):
            raise RuntimeError("can't start new thread")
        start(thread)

    with patch.object(threading.Thread, "start", begin):
        yield
