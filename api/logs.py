"""Structured logs on standard error."""

import logging
import sys

import structlog

from api.settings import Settings


def configure(settings: Settings) -> None:
    """Send structured logs to standard error, as lines for people or as JSON."""
    renderer: structlog.typing.Processor = structlog.processors.JSONRenderer()
    if settings.log_format == "console":
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.dict_tracebacks
            if settings.log_format == "json"
            else structlog.processors.ExceptionPrettyPrinter(),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[settings.log_level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
