"""Connections of clients: for how long silence on them is borne, and how many there can be."""

import os
import resource
import time
from asyncio import AbstractEventLoop, BaseTransport, TimerHandle
from collections.abc import Callable
from typing import Any

import structlog
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from kintsugi.core.descriptors import ran_out

HEAD_SECONDS = 10.0
"""How long the head of a request may take, from its first byte, or that of the first from the beginning of the connection."""
BODY_SECONDS = 30.0
"""From one part of a request's body to the next: whoever fell silent, as a host without power does, may never be heard of again."""
MOST_HEAD_BYTES = 2**18
"""Of a request's head, and of what may follow its body: nobody has said who they are by then. The longest addresses are those of
pages that ask about thousands of workers.
"""
UNREAD_SECONDS = 60.0
"""How long nothing is taken in of an answer that the system has no more room for."""
SILENCE_SECONDS = 60.0
"""Between two lines about the same lack."""
TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
TLS_HANDSHAKE = b"\x16\x03"
"""How a connection begins that is to be encrypted."""


class _Patience:
    """With a peer: what is done when it is over."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: TimerHandle | None = None

    @property
    def has_begun(self) -> bool:
        """Whether it was not ended since; it may be over."""
        return self._timer is not None

    def begin(self, seconds: float, act: Callable[..., None], *arguments: object) -> None:
        """Begin, or begin anew."""
        self.end()
        self._timer = self._loop.call_later(seconds, act, *arguments)

    def end(self) -> None:
        """There is nothing to wait for."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Gibberish:
    """Says in the log that something comes which is no HTTP; not each time, for strangers may send what they like."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told: float | None = None
        self._untold = 0

    def tell(self, client: tuple[str, int] | None, *, is_tls: bool | None) -> None:
        """It came from `client`; `is_tls` where it looks like the beginning of an encrypted connection."""
        now = self._clock()
        if self._told is not None and now - self._told < SILENCE_SECONDS:
            self._untold += 1
            return
        more: dict[str, object] = {"way_out": "clients write http://, or the service gets a certificate"} if is_tls else {}
        more |= {"untold": self._untold} if self._untold else {}
        event = "a client speaks TLS, the service does not" if is_tls else "a client sends what is no HTTP"
        structlog.get_logger("kintsugi.api").warning(event, address=client and client[0], **more)
        self._told, self._untold = now, 0


class PromptProtocol(HttpToolsProtocol):
    """Closes connections on which a request begins and does not come to its end, or whose answers nobody reads."""

    _gibberish = Gibberish()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._with_sender, self._with_reader = _Patience(self.loop), _Patience(self.loop)
        self._is_within_body = False
        self._begins_as_tls: bool | None = None
        self._num_head_bytes = 0

    def connection_made(self, transport: BaseTransport) -> None:
        """Somebody is there, and is to say what for."""
        super().connection_made(transport)  # type: ignore[arg-type]
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        """Whatever comes while nothing is asked for begins a request."""
        if self._begins_as_tls is None:
            self._begins_as_tls = data.startswith(TLS_HANDSHAKE)
        if not self._with_sender.has_begun and (self.cycle is None or self.cycle.response_complete):
            self._expect_head()
        self._num_head_bytes += len(data)
        super().data_received(data)
        if self._num_head_bytes > MOST_HEAD_BYTES:
            self._refuse_head()
        elif self._is_within_body:
            self._expect_body()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, and say so in the log: who sends it may be a client of the wrong scheme."""
        self._gibberish.tell(self.client, is_tls=self._begins_as_tls)
        super().send_400_response(msg)

    def on_headers_complete(self) -> None:
        """The head is there; the body is waited for part by part."""
        self._num_head_bytes = 0
        self._with_sender.end()
        self._is_within_body = True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A part of the body is there."""
        self._num_head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """All of the request is there; the rest is the application's."""
        self._num_head_bytes = 0
        self._with_sender.end()
        self._is_within_body = False
        super().on_message_complete()

    def pause_writing(self) -> None:
        """Somebody is to read before long what waits to be sent."""
        super().pause_writing()
        self._expect_reader()

    def resume_writing(self) -> None:
        """Somebody reads; where the connection was broken, its loss wakes who writes: nothing can be sent on it any more."""
        self._with_reader.end()
        if not self.transport.is_closing():
            super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing comes any more."""
        self._with_sender.end()
        self._with_reader.end()
        super().connection_lost(exc)

    def _refuse_head(self) -> None:
        """Close a connection whose request may never be heard of by the application: the parser keeps all of its head."""
        if self.cycle is None or self.cycle.response_complete:
            self.transport.write(TOO_LARGE)
        self.transport.close()

    def _expect_head(self) -> None:
        self._with_sender.begin(HEAD_SECONDS, self.transport.close)

    def _expect_body(self) -> None:
        self._with_sender.begin(BODY_SECONDS, self._close_if_heard)

    def _close_if_heard(self) -> None:
        """Close the connection, unless it is this side that does not listen: the application has not taken what came."""
        if self.flow.read_paused:
            self._expect_body()
        else:
            self.transport.close()

    def _expect_reader(self) -> None:
        self._with_reader.begin(UNREAD_SECONDS, self._abort_if_unread, self.transport.get_write_buffer_size())

    def _abort_if_unread(self, num_bytes: int) -> None:
        """Break the connection if as many bytes wait as before: to close it would be to wait until they are read."""
        if self.transport.get_write_buffer_size() < num_bytes:
            self._expect_reader()
        else:
            self.transport.abort()


class Descriptors:
    """Says in the log when none is left: connections are reset then, and nothing else tells why."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told: float | None = None

    def look(self) -> None:
        """Try whether there is one more."""
        try:
            os.close(os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            if ran_out(error):
                self._tell()

    def _tell(self) -> None:
        now = self._clock()
        if self._told is None or now - self._told >= SILENCE_SECONDS:
            self._told = now
            limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            structlog.get_logger("kintsugi.api").error(
                "no descriptor is left: new connections are reset", limit=limit, way_out="raise `ulimit -n`, or see who connects"
            )
