"""Where the library's own log goes: to wherever the program that uses it sends structlog's, else to standard error."""

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import structlog


class StandardError:
    """What lines of any level are given to; work goes on where nobody reads them."""

    @staticmethod
    def _tell(line: str) -> None:
        if sys.stderr is not None:
            with suppress(OSError, ValueError):
                sys.stderr.write(f"{line}\n")  # as a whole: other threads tell lines, too
                sys.stderr.flush()

    debug = info = warning = error = critical = exception = _tell


def is_on_terminal() -> bool:
    """Whether standard error is there, and a terminal: lines may have colours."""
    return sys.stderr is not None and sys.stderr.isatty()


def get_logger(name: str) -> Any:
    """A logger of structlog's, whose own default would write between what a program has on its standard output.

    Args:
        name: for a program that hands structlog's log to Python's (`structlog.stdlib.LoggerFactory`).
    """
    return structlog.get_logger(name) if structlog.is_configured() else structlog.wrap_logger(StandardError())


def warn_only() -> None:
    """Send warnings and worse alone, of all of this process, to standard error; whoever started it tells of the rest."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING), logger_factory=lambda *_: StandardError()
    )


@contextmanager
def told_if_long(log: Any, words: str, seconds: float = 10.0) -> Iterator[None]:
    """Tell `words` once what is within has taken so long, so that nobody takes it for hung."""
    timer = threading.Timer(seconds, log.info, [words])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
