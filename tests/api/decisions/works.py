"""What forks and their server are asked to do in tests: what is loaded for it is little, for each of them loads it anew."""

import multiprocessing
import os
import signal

from kintsugi.core.errors import InfeasibleError

prepared_by: list[int] = []


def prepare():
    """What a server does that is there soon."""
    prepared_by.append(os.getpid())


def prepare_for_early_ends():
    """Who ends a fork can hardly do so sooner."""
    os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGTERM))


def never_prepared():
    signal.pause()


def tell_origin(connection):
    """Tell this process, its parent, and who prepared what it has."""
    connection.send((os.getpid(), os.getppid(), prepared_by))
    signal.pause()


def fails():
    raise InfeasibleError("nothing fits", field="workers", value=3)


def breaks():
    raise ZeroDivisionError("nobody expected it")


class Foreign:
    """What is sent and cannot be read where it arrives: as when the package was replaced under a service that runs."""

    def __reduce__(self):
        return only_elsewhere, ()


def only_elsewhere():
    if multiprocessing.parent_process() is None:
        raise AttributeError("such a class is not here")


def stillborn(_connection, _niceness):
    """The life of a process that ends before it is ready."""


def never_there(_connection, _niceness):
    """The life of a process that is not there yet, and says nothing meanwhile."""
    signal.pause()


def dies(_snapshot):
    if multiprocessing.parent_process() is None:
        raise AssertionError("is made in the service's own process")
    os.kill(os.getpid(), signal.SIGKILL)
