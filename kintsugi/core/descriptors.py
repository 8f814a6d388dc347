"""How many files and connections a process may have open at once."""

import resource
from contextlib import suppress


def allow_most() -> None:
    """Let this process, and those that it starts from now on, have as many descriptors as the administrator allows."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # where there is no bound some systems have one all the same
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
