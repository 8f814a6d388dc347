"""One attempt to deliver: one POST to a judged address, bounded in time and size, no redirects, no proxies."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import anyio
import httpcore2

from api.webhooks.guard import Guard, GuardedBackend, TargetRefusedError

FAILURES = (
    OSError,
    httpcore2.NetworkError,
    httpcore2.ProtocolError,
    httpcore2.TimeoutException,
    httpcore2.UnsupportedProtocol,
)
"""What may come of a receiver that is away, breaks off, or speaks no HTTP."""

GONE = 410
CONNECTED = "http11.send_request_headers.started"
"""Httpcore's event between a connection, its encryption included, and the first letter that is sent on it."""
STREAMS = ("connect_tcp.complete", "start_tls.complete")
"""How the names of its events end that give what is read from."""
MOST_HEAD_BYTES = 32_768
"""That a receiver may say up to the end of its answer's head."""
READ_BYTES = 4_096
"""Of these at a time: while they are parsed nobody else is served."""


class TakenBackError(Exception):
    """What was to be sent is not to be sent any more."""


async def always() -> bool:
    """Nobody takes back what is to be sent."""
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """How one attempt ended."""

    status: int | None = None
    """The receiver's answer; null where there was none."""
    error: str | None = None
    """Why it does not count as delivered; null where it does."""

    @property
    def is_final(self) -> bool:
        """Whether the receiver said that it does not want to be asked again."""
        return self.status == GONE


class Sender:
    """Posts to receivers; a context manager."""

    def __init__(self, guard: Guard, *, timeout_seconds: float, most_at_once: int) -> None:
        self._timeout_seconds = timeout_seconds
        self._pool = httpcore2.AsyncConnectionPool(
            network_backend=GuardedBackend(guard), max_connections=most_at_once, max_keepalive_connections=0
        )

    async def __aenter__(self) -> Self:
        await self._pool.__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._pool.__aexit__(kind, error, trace)

    async def send(
        self, url: str, headers: Mapping[str, str], body: str, *, may_send: Callable[[], Awaitable[bool]] = always
    ) -> Attempt:
        """Post `body` and wait for the answer's status; the rest of the answer is not read.

        Args:
            url: of the receiver.
            headers: that are sent.
            body: that is sent.
            may_send: asked once the receiver is there, which may take almost all the time of the attempt.

        Raises:
            TakenBackError: it may not; the receiver heard nothing.
            KintsugiError: that `may_send` raised.
        """

        async def ask(event: str, details: Mapping[str, Any]) -> None:
            if event.endswith(STREAMS):
                _bound(details["return_value"])
            if event == CONNECTED and not await may_send():
                raise TakenBackError

        asked, letters, extensions = list(headers.items()), body.encode(), {"trace": ask}
        try:
            with anyio.fail_after(self._timeout_seconds):
                async with self._pool.stream("POST", url, headers=asked, content=letters, extensions=extensions) as response:
                    return _attempt(response.status)
        except TimeoutError:
            return Attempt(error=f"no answer within {self._timeout_seconds:g} s")
        except TargetRefusedError as error:
            return Attempt(error=f"{error.value} {error.message}")
        except FAILURES as error:
            return Attempt(error=_words(error))


def _bound(stream: Any) -> None:
    """Have no more be read than the head of an answer takes: provisional answers (1xx) before it would go on for ever."""
    read, left = stream.read, MOST_HEAD_BYTES

    async def read_on(max_bytes: int, timeout: float | None = None) -> bytes:
        nonlocal left
        if left <= 0:
            raise httpcore2.ReadError(f"the receiver says more than {MOST_HEAD_BYTES} bytes without an answer")
        part: bytes = await read(min(max_bytes, READ_BYTES), timeout)
        left -= len(part)
        return part

    stream.read = read_on


def _words(error: Exception) -> str:
    """What an error says, but for what it quotes of the answer, which is not for those who read of deliveries."""
    broken_off = "the receiver closed the connection without an answer"
    if isinstance(error, httpcore2.RemoteProtocolError):
        return broken_off if "disconnected" in str(error) else "the receiver's answer is not HTTP"
    return str(error) or (broken_off if isinstance(error, httpcore2.NetworkError) else type(error).__name__)


def _attempt(status: int) -> Attempt:
    if 200 <= status < 300:
        return Attempt(status=status)
    if 300 <= status < 400:
        return Attempt(status=status, error="the receiver redirects, which is not followed: change the webhook's url")
    return Attempt(status=status, error=f"the receiver answered {status}")
