"""Streams that outlive their connections: taken up again behind the last message, without loss and without repetition."""

import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, suppress
from typing import Any

import httpx2

from kintsugi.client.answers import AwayError, noun_of
from kintsugi.client.connection import Connection
from kintsugi.core.errors import InvalidInputError, UnavailableError
from kintsugi.core.news import News

BEGIN = "begin"
"""The first message of every life of a stream: only its id counts."""


def follow(connection: Connection, path: str, parameters: Mapping[str, Any]) -> Generator[News, None, None]:
    """Everything that a stream tells, over as many connections as it takes, until the generator is closed.

    Raises:
        UnavailableError: no connection could be had after all attempts in a row, or what came over one is not understood.
        KintsugiError: the service refused.
    """
    patience, last_id = connection.patience, None
    pause_seconds = patience.retry_seconds
    while True:
        with ExitStack() as life:
            begin, messages = _opened(connection, path, parameters, last_id, life)
            last_id = begin.id
            with suppress(AwayError):
                for message in _unbroken(messages):
                    last_id, pause_seconds = message.id, patience.retry_seconds
                    yield _news(message)
        time.sleep(pause_seconds)
        pause_seconds = min(2 * pause_seconds, patience.longest_retry_seconds)  # until something is told again


def _opened(
    connection: Connection, path: str, parameters: Mapping[str, Any], last_id: str | None, life: ExitStack
) -> tuple[httpx2.ServerSentEvent, Iterator[httpx2.ServerSentEvent]]:
    """The first message of a connection that stays open for `life`, and those that follow."""
    for attempt in connection.attempts():
        with attempt, connection.in_time(), ExitStack() as trial:
            messages = trial.enter_context(connection.stream(path, parameters=parameters, last_id=last_id))
            begin = next(messages, None)
            if begin is None or begin.event != BEGIN:
                raise AwayError("the stream ended before it began", field="url")
            life.push(trial.pop_all())
            return begin, messages
    raise AssertionError("the last attempt returns or raises")


def _unbroken(messages: Iterator[httpx2.ServerSentEvent]) -> Iterator[httpx2.ServerSentEvent]:
    """The messages, with the end of a broken connection told as the service's absence."""
    try:
        yield from messages
    except httpx2.RequestError as error:
        raise AwayError("the stream broke", field="url") from error


def _news(message: httpx2.ServerSentEvent) -> News:
    try:
        return noun_of(News, message.data)
    except InvalidInputError as error:  # leaving it out would lose it
        raise UnavailableError(f"the stream tells what is no news: {error}", field="url") from error
