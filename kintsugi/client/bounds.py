"""What one answer may take, whoever gives it: the time up to its last byte, however they come, and its size."""

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, TypeVar

import httpcore2
import httpx2

from kintsugi.client.answers import AwayError, require_answer, understood

LARGEST_ANSWER_BYTES = 2**29
"""Of an answer as it is understood, unpacked; what the service tells of the largest job is well below."""


CONNECTED = ("connect_tcp.complete", "start_tls.complete")
"""How the names of httpcore's events end that tell of a connection, or of its encryption."""
ASKED, BEGUN = "send_request_headers.started", "receive_response_headers.complete"
"""How those end that tell of a request, and of the head of its answer."""

T = TypeVar("T")


class AnswerTime(threading.local):
    """How long this thread goes on reading what it asked for; for ever unless it says otherwise."""

    def __init__(self) -> None:
        self._until = math.inf
        self._has_heard = False
        """Whether anything came since this thread asked."""

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Meanwhile reads of this thread end after so many seconds, all together."""
        before, self._until = self._until, time.monotonic() + seconds
        try:
            yield
        finally:
            self._until = before

    def bound(self, event: str, details: Mapping[str, Any]) -> None:
        """Have what is read from new connections obey, whichever thread reads; each read has its own timeout beside.

        An answer that was there before its request is refused, and its connection closed: it is the second one to another request,
        and each later one would be, too.

        For httpcore to call, as the "trace" of a request.
        """
        if event.endswith(CONNECTED):
            stream = details["return_value"]
            stream.read = partial(self._read, stream.read)
        elif event.endswith(ASKED):
            self._has_heard = False
        elif event.endswith(BEGUN) and not self._has_heard:
            raise httpcore2.RemoteProtocolError("somebody on the way answered an earlier request twice")

    def _read(self, read: Callable[..., bytes], max_bytes: int, timeout: float | None = None) -> bytes:
        left = self._until - time.monotonic()
        if left <= 0.0:
            raise httpcore2.ReadTimeout("its answer was not whole in time")
        part = read(max_bytes, left if timeout is None or left < timeout else timeout)
        self._has_heard = True
        return part


def answered(http: httpx2.Client, request: httpx2.Request, read: Callable[[httpx2.Response], T], address: str) -> T:
    """What `read` makes of the whole answer to one request, which is sent once.

    Raises:
        AwayError: somebody else spoke in the service's place, or too long.
        KintsugiError: the service refused.
        httpx2.RequestError: the connection broke, or could not be made.
    """
    with closing(http.send(request, stream=True)) as begun:
        response = whole(begun, address)
    require_answer(response, address)
    return understood(read, response, address)


def whole(response: httpx2.Response, address: str) -> httpx2.Response:
    """A response whose body is still on its way, with all of it.

    Raises:
        AwayError: it is larger than any answer of the service's, or packed more than once.
    """
    require_packed_once(response, address)
    content = bytearray()
    for part in response.iter_bytes():
        content += part
        if len(content) > LARGEST_ANSWER_BYTES:
            raise AwayError(f"the service at {address} answers with more than {LARGEST_ANSWER_BYTES} bytes", field="url")
    pause = response.headers.get("Retry-After", "")
    headers = {"Retry-After": pause} if pause.isascii() else {}  # others cannot be written
    return httpx2.Response(response.status_code, headers=headers, content=bytes(content))


def require_packed_once(response: httpx2.Response, address: str) -> None:
    """Refuse a body that is packed within another packing: few bytes of it may be more than memory holds, before they are counted.

    Raises:
        AwayError: it is.
    """
    if "," in (packings := response.headers.get("Content-Encoding", "")):
        raise AwayError(f"the service at {address} answers with what is packed more than once: {packings[:100]}", field="url")
