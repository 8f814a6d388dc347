"""Where a command's own log goes: its standard output is for its result, or for that of what it runs."""

import structlog

from api.texts import escaped_line
from kintsugi.core.logs import StandardError, is_on_terminal


def log_to_stderr() -> None:
    """Send the log of this process to standard error, in colours on a terminal, which what it tells of others cannot steer."""
    structlog.configure(
        processors=[
            *structlog.get_config()["processors"][:-1],
            escaped_line,
            structlog.dev.ConsoleRenderer(colors=is_on_terminal()),
        ],
        logger_factory=lambda *_: StandardError(),
    )
