"""How many files and connections a process may have open at once."""

import errno
import os
import resource
from contextlib import suppress

_EXHAUSTED = tuple(map(os.strerror, (errno.EMFILE, errno.ENFILE)))


def allow_most() -> None:
    """Let this process, and those that it starts from now on, have as many descriptors as the administrator allows."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # where there is no bound some systems have one all the same
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def ran_out(told: object) -> bool:
    """Whether an error, or what a library tells of one, is that no descriptor was left for this process."""
    return any(text in str(told) for text in _EXHAUSTED)
