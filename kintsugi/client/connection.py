"""Requests to one service: authorised, timed out, tried again, and its refusals as Kintsugi's own errors."""

import logging
import math
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote
from uuid import uuid4
from weakref import WeakSet

import httpx2
import tenacity

from kintsugi.client.answers import AwayError, require_answer
from kintsugi.client.bounds import CONNECTED, LARGEST_ANSWER_BYTES, AnswerTime, answered, require_packed_once, whole
from kintsugi.client.patience import Patience
from kintsugi.core.errors import InvalidInputError, UnavailableError, cause_of

T = TypeVar("T")

LOG = logging.getLogger("kintsugi.client")
LONGEST_PAUSE_SECONDS = 60.0
"""Before a retry, however long the service asks for."""
REMINDER_SECONDS = 60.0
"""How often the same attempt for the same reason is worth a warning, whichever request it is of."""
TOKEN_VARIABLE = "KINTSUGI_TOKEN"  # noqa: S105 - the name of a variable
CA_VARIABLE = "KINTSUGI_CA_FILE"
UNKNOWN_ISSUERS = ("unable to get local issuer certificate", "self-signed certificate")
"""How OpenSSL says that nobody who is trusted vouches for a certificate."""
NO_TLS = ("wrong version number", "packet length too long", "record layer failure")
"""How its versions say that what was answered is no TLS."""


class Connection:
    """A pool of connections to one service; safe for several threads, and in forks, each of which gets one of its own."""

    def __init__(
        self, url: str, *, token: str | None, ca_file: str | None, patience: Patience, transport: httpx2.BaseTransport | None
    ) -> None:
        self.patience = patience
        self._deadline: float | None = None
        self._answer_time = AnswerTime()
        self._streams: WeakSet[Any] = WeakSet()
        self._told_at: dict[tuple[str, int], float] = {}
        """When a reason for a retry was told last, with the attempt's number, on the monotonic clock."""
        self._address = checked_address(url)
        self._make_pool = partial(
            httpx2.Client,
            base_url=url,
            headers=authorization(token or os.environ.get(TOKEN_VARIABLE)),
            verify=trusted(ca_file or os.environ.get(CA_VARIABLE)),
            timeout=self._timeout(),
            transport=transport,
        )
        self._process, self._pool = os.getpid(), self._make_pool()

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    @property
    def _http(self) -> httpx2.Client:
        """The pool of this process: on what a fork inherits both would ask, and hear each other's answers."""
        if self._process != os.getpid() and not self._pool.is_closed:
            self._pool, self._streams, self._process = self._make_pool(), WeakSet(), os.getpid()  # in this order, for other threads
        return self._pool

    @property
    def is_hurried(self) -> bool:
        """Whether answers are worth only little time."""
        return self._deadline is not None

    @contextmanager
    def hurried(self, seconds: float) -> Iterator[None]:
        """All requests together get so many seconds: those under way one half, with no further attempt, later ones what is left."""
        self._deadline = time.monotonic() + seconds
        cutting = threading.Timer(seconds / 2.0, self._cut)
        cutting.start()
        try:
            yield
        finally:
            self._deadline = None
            cutting.cancel()
            cutting.join()

    def send(
        self,
        method: str,
        path: str,
        read: Callable[[httpx2.Response], T],
        *,
        parameters: Mapping[str, Any] | None = None,
        content: str | None = None,
        wait_seconds: float = 0.0,
    ) -> T:
        """The answer to one request, tried again while the service is away; a write carries one key through all attempts.

        `read` makes the answer of a response; what it does not understand (`InvalidInputError`) somebody else said.

        Raises:
            UnavailableError: no attempt had an answer of the service's.
            KintsugiError: the service refused.
        """
        headers = {} if content is None else {"Content-Type": "application/json", "Idempotency-Key": uuid4().hex}
        request = self._http.build_request(
            method, path, params=_given(parameters), content=content, headers=headers, extensions={"trace": self._note}
        )
        for attempt in self.attempts():
            with attempt, self._absence_named(), self.in_time(wait_seconds) as timeout:
                request.extensions["timeout"] = timeout.as_dict()
                return answered(self._http, request, read, self._address)
        raise AssertionError("the last attempt returns or raises")

    @contextmanager
    def stream(
        self, path: str, *, parameters: Mapping[str, Any], last_id: str | None
    ) -> Iterator[Iterator[httpx2.ServerSentEvent]]:
        """One life of a stream of server-sent events, behind the message `last_id`; it is not tried again.

        Raises:
            UnavailableError: the stream broke, fell silent or could not be opened now.
            KintsugiError: the service refused.
        """
        headers = {} if last_id is None else {b"Last-Event-ID": last_id.encode()}
        with (
            self._absence_named(),
            self._http.sse(
                path,
                params=_given(parameters),
                headers=headers,
                max_event_size=LARGEST_ANSWER_BYTES,
                extensions={"trace": self._answer_time.bound},
            ) as source,
        ):
            require_packed_once(source.response, self._address)
            if source.response.is_error:
                require_answer(whole(source.response, self._address), self._address)
            yield iter(source)

    @contextmanager
    def in_time(self, wait_seconds: float = 0.0) -> Iterator[httpx2.Timeout]:
        """Meanwhile this thread has the time for one answer, which is `wait_seconds` long in coming; gives that of each read."""
        timeout = self._timeout(wait_seconds)
        assert timeout.read is not None
        with self._answer_time.within(timeout.read):
            yield timeout

    def attempts(self) -> tenacity.Retrying:
        """Context managers, one for each attempt, that swallow the service's absence, and pause, until patience ends."""
        deadline = self._deadline
        left_seconds = math.inf if deadline is None else deadline - time.monotonic()
        return tenacity.Retrying(
            retry=tenacity.retry_if_exception(lambda error: isinstance(error, AwayError) and self._deadline == deadline),
            wait=self._pause_seconds,
            stop=tenacity.stop_after_attempt(self.patience.attempts) | tenacity.stop_before_delay(left_seconds),
            before_sleep=self._tell_of_retry,
            reraise=True,
        )

    def _pause_seconds(self, state: tenacity.RetryCallState) -> float:
        """Twice as long each time, spread by chance, or what the service asked for where that is longer."""
        asked = _failure(state).pause_seconds or 0.0
        first, longest = self.patience.retry_seconds, self.patience.longest_retry_seconds
        own = (tenacity.wait_exponential(multiplier=first, max=longest) + tenacity.wait_random(0.0, first))(state)
        return max(min(longest, own), min(asked, LONGEST_PAUSE_SECONDS))

    def _tell_of_retry(self, state: tenacity.RetryCallState) -> None:
        told, attempt, now = _failure(state).message, state.attempt_number + 1, time.monotonic()
        is_news = now - self._told_at.get((told, attempt), -math.inf) >= REMINDER_SECONDS
        if is_news:
            self._told_at = {key: at for key, at in self._told_at.items() if now - at < REMINDER_SECONDS} | {(told, attempt): now}
        log = LOG.warning if is_news else LOG.debug
        log("%s; attempt %d of %d in %.2g s", told, attempt, self.patience.attempts, state.upcoming_sleep)

    def _timeout(self, wait_seconds: float = 0.0) -> httpx2.Timeout:
        deadline = self._deadline
        left = math.inf if deadline is None else deadline - time.monotonic()
        if left <= 0.0:
            raise AwayError(f"the service at {self._address} has had its time to answer", field="url")
        return httpx2.Timeout(
            min(self.patience.timeout_seconds + wait_seconds, left), connect=min(self.patience.connect_seconds, left)
        )

    @contextmanager
    def _absence_named(self) -> Iterator[None]:
        """Tells a broken or missing connection as the service's absence; one that another thread has closed is not tried again."""
        try:
            yield
        except httpx2.RequestError as error:
            reason = reason_of(error, self._address)
            raise AwayError(f"the service at {self._address} does not answer: {reason}", field="url") from error
        except RuntimeError as error:
            if not self._http.is_closed:
                raise
            raise UnavailableError(f"the client of the service at {self._address} was closed", field="url") from error

    def _note(self, event: str, details: Mapping[str, Any]) -> None:
        """Remember the connections that are made, which `hurried` breaks; not those of streams."""
        self._answer_time.bound(event, details)
        if event.endswith(CONNECTED):
            self._streams.add(details["return_value"])

    def _cut(self) -> None:
        """Break all connections, so that nobody waits for an answer any longer: closing them alone wakes no thread."""
        for stream in list(self._streams):
            with suppress(OSError):
                stream.get_extra_info("socket").shutdown(socket.SHUT_RDWR)


def checked_address(url: str, field: str = "url") -> str:
    """Scheme, host and port of a service, without what a URL may say of the user.

    Raises:
        InvalidInputError: the URL has no host, or is of another scheme than HTTP.
    """
    try:
        parsed = httpx2.URL(url)
    except (httpx2.InvalidURL, TypeError) as error:
        raise InvalidInputError(f"is no URL: {error}", field=field, value=url) from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise InvalidInputError("is no URL of a service; write it as http://127.0.0.1:8000", field=field, value=url)
    if parsed.path.rstrip("/").endswith("/v1"):
        raise InvalidInputError("ends in /v1, which the client itself adds; leave it out", field=field, value=url)
    return f"{parsed.scheme}://{parsed.netloc.decode()}"


def path_of(job: str, *parts: str) -> str:
    """The path of a job, or of what belongs to it.

    Raises:
        InvalidInputError: the job has no name that could stand there.
    """
    if not isinstance(job, str) or not job.strip("."):
        raise InvalidInputError("must be the id of a job, as `create_job` was given or told it", field="job", value=job)
    return "/".join(("/v1/jobs", quote(job, safe=""), *parts))


def _failure(state: tenacity.RetryCallState) -> AwayError:
    error = state.outcome.exception() if state.outcome is not None else None
    assert isinstance(error, AwayError)
    return error


def _given(parameters: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in (parameters or {}).items() if value is not None}


def authorization(token: str | None) -> dict[str, str]:
    """The header with a token; what it is that cannot be sent is not repeated, for errors are logged.

    Raises:
        InvalidInputError: no header can hold it.
    """
    if not token:
        return {}
    if not (isinstance(token, str) and token.isascii() and token.isprintable() and " " not in token):
        raise InvalidInputError(
            "must be printable ASCII characters without spaces, as `kintsugi token create` prints it", field="token"
        )
    return {"Authorization": f"Bearer {token}"}


def trusted(ca_file: str | None) -> ssl.SSLContext | bool:
    """Whose certificates are trusted: those that the file vouches for, or those that this machine trusts.

    Raises:
        InvalidInputError: the file holds none, or cannot be read.
    """
    if not ca_file:
        return True
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        message = f"is no file of certificates that can be read ({cause_of(error)}); give one in PEM form"
        raise InvalidInputError(message, field="ca_file", value=ca_file) from error


def reason_of(error: httpx2.RequestError, address: str) -> str:
    """Why a service does not answer, and what may be done about it."""
    reason = str(error).rstrip(".") or type(error).__name__
    scheme, _, place = address.partition("://")
    if any(text in reason.lower() for text in NO_TLS):
        return f"{reason}; it speaks no TLS there: write http://{place}"
    if any(text in reason for text in UNKNOWN_ISSUERS):
        return f"{reason}; {CA_VARIABLE} names the file of an authority to trust"
    if scheme == "http" and isinstance(error, httpx2.RemoteProtocolError | httpx2.ReadError):
        return f"{reason}; if it speaks TLS there, write https://{place}"
    return reason
