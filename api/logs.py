"""Structured logs on standard error."""

import asyncio
import logging
import re
from io import StringIO
from typing import TextIO

import structlog
from structlog.typing import EventDict, ExcInfo

from api.settings import Settings
from api.texts import escaped, escaped_line, shortened
from kintsugi.core.logs import StandardError, is_on_terminal

STRANGE = ("Invalid HTTP request received.", "Unsupported upgrade request.", "No supported WebSocket library detected.")
"""How uvicorn begins to tell, each time, what strangers send; `Gibberish` says it now and then, and the rest is of no interest."""
_JOB = re.compile(r"/v1/jobs/([^/]{1,200})(?:/plans/(\d{1,10}))?(?:/|$)")


def job_context(path: str) -> dict[str, str | int]:
    """What every line about a request says of the job and the generation in its path."""
    found = _JOB.match(path)
    if found is None:
        return {}
    return {"job": found[1]} | ({"generation": int(found[2])} if found[2] else {})


def configure(settings: Settings) -> None:
    """Send structured logs to standard error, as lines for people or as JSON; what libraries warn of, too."""
    rendering: list[structlog.typing.Processor] = (
        [
            structlog.processors.ExceptionRenderer(structlog.tracebacks.ExceptionDictTransformer(show_locals=False)),
            structlog.processors.JSONRenderer(),
        ]
        if settings.log_format == "json"
        else [escaped_line, structlog.dev.ConsoleRenderer(colors=is_on_terminal(), exception_formatter=_trace)]
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _shorten,
            *rendering,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[settings.log_level.upper()]),
        logger_factory=lambda *_: StandardError(),
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    root.handlers = [*(other for other in root.handlers if not isinstance(other, _Libraries)), _Libraries(logging.WARNING)]
    logging.captureWarnings(True)


def _shorten(_logger: object, _method: str, line: EventDict) -> EventDict:
    """Cut long texts: paths and names are whatever others send."""
    return {name: shortened(value) if isinstance(value, str) else value for name, value in line.items()}


def _trace(into: TextIO, error: ExcInfo) -> None:
    """Write an error as Python does, and as escapes what would steer the terminal: its text may hold whatever was sent."""
    text = StringIO()
    structlog.dev.plain_traceback(text, error)
    into.write(escaped(text.getvalue()))


class _Libraries(logging.Handler):
    """Writes what libraries log by Python's own means as our own lines are written."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line; not that a request was called off because the service stops: how many are is said once."""
        if record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError):
            return
        if record.name == "uvicorn.error" and record.getMessage().startswith(STRANGE):
            return
        level = min(record.levelno // 10 * 10, logging.CRITICAL)  # one that structlog knows
        structlog.get_logger().log(level, record.getMessage(), logger=record.name, exc_info=record.exc_info)
