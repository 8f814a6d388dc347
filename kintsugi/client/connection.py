"""Requests to one service: authorised, timed out, tried again, and its refusals as Kintsugi's own errors."""

import os
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import quote
from uuid import uuid4

import httpx2
import stamina

from kintsugi.client.patience import Patience
from kintsugi.core import codec
from kintsugi.core.errors import PROBLEM_TYPE, InvalidInputError, KintsugiError, UnavailableError, error_from

T = TypeVar("T")

LONGEST_PAUSE_SECONDS = 60.0
"""Before a retry, however long the service asks for."""
TOKEN_VARIABLE = "KINTSUGI_TOKEN"  # noqa: S105 - the name of a variable
CA_VARIABLE = "KINTSUGI_CA_FILE"


class Connection:
    """A pool of connections to one service; safe for several threads."""

    def __init__(
        self, url: str, *, token: str | None, ca_file: str | None, patience: Patience, transport: httpx2.BaseTransport | None
    ) -> None:
        self.patience = patience
        self._address = checked_address(url)
        token = token or os.environ.get(TOKEN_VARIABLE)
        self._http = httpx2.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {token}"} if token else {},
            verify=_trusted(ca_file or os.environ.get(CA_VARIABLE)),
            timeout=self._timeout(),
            transport=transport,
        )

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

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
            method, path, params=_given(parameters), content=content, headers=headers, timeout=self._timeout(wait_seconds)
        )
        for attempt in self.attempts():
            with attempt, _told(self._address):
                response = self._http.send(request)
                _require_answer(response, self._address)
                return _understood(read, response, self._address)
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
        headers = {} if last_id is None else {"Last-Event-ID": last_id}
        with (
            _told(self._address),
            self._http.sse(path, params=_given(parameters), headers=headers, max_event_size=None) as source,
        ):
            if source.response.is_error:
                source.response.read()
            _require_answer(source.response, self._address)
            yield iter(source)

    def attempts(self) -> Any:
        """Context managers, one for each attempt, that swallow the service's absence until patience ends."""
        return stamina.retry_context(
            on=_pause,
            attempts=self.patience.attempts,
            timeout=None,
            wait_initial=self.patience.retry_seconds,
            wait_max=self.patience.longest_retry_seconds,
            wait_jitter=self.patience.retry_seconds,
        )

    def _timeout(self, wait_seconds: float = 0.0) -> httpx2.Timeout:
        return httpx2.Timeout(self.patience.timeout_seconds + wait_seconds, connect=self.patience.connect_seconds)


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
    return f"{parsed.scheme}://{parsed.netloc.decode()}"


class AwayError(UnavailableError):
    """No answer, one that asks to come back later, or one that is none of the service's: worth another attempt."""

    pause_seconds: float | None = None
    """What the service asks for before the next attempt."""


def path_of(job: str, *parts: str) -> str:
    """The path of a job, or of what belongs to it."""
    return "/".join(("/v1/jobs", quote(job, safe=""), *parts))


def answer_of(kind: type[T]) -> Callable[[httpx2.Response], T]:
    """Reads what a response holds."""
    return lambda response: codec.loads(kind, response.content)


def newer_of(kind: type[T]) -> Callable[[httpx2.Response], T | None]:
    """Reads what a response holds, or None from one that says that nothing newer came."""
    return lambda response: None if response.status_code == httpx2.codes.NO_CONTENT else codec.loads(kind, response.content)


def _pause(error: Exception) -> bool | float:
    """Whether another attempt may help, or after how many seconds."""
    if not isinstance(error, AwayError):
        return False
    return True if error.pause_seconds is None else min(error.pause_seconds, LONGEST_PAUSE_SECONDS)


def _given(parameters: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in (parameters or {}).items() if value is not None}


def _trusted(ca_file: str | None) -> ssl.SSLContext | bool:
    """Whose certificates are trusted: those that the file vouches for, or those that this machine trusts."""
    if not ca_file:
        return True
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        message = f"is no file of certificates that can be read ({error.strerror or error}); give one in PEM form"
        raise InvalidInputError(message, field="ca_file", value=ca_file) from error


@contextmanager
def _told(address: str) -> Iterator[None]:
    """Tells a broken or missing connection as the service's absence."""
    try:
        yield
    except httpx2.RequestError as error:
        raise AwayError(f"the service at {address} does not answer: {str(error) or type(error).__name__}", field="url") from error


def _require_answer(response: httpx2.Response, address: str) -> None:
    """Raise what the service refused with; its own errors, and what others say in its place, are its absence."""
    if not response.is_error:
        return
    refusal = _refusal(response)
    if refusal is not None and response.is_client_error and response.status_code != httpx2.codes.TOO_MANY_REQUESTS:
        raise refusal
    why = "without a problem document of its own" if refusal is None else str(refusal)
    error = AwayError(f"the service at {address} answers {response.status_code}: {why}", field="url")
    asked = response.headers.get("Retry-After", "")
    error.pause_seconds = float(asked) if asked.isdecimal() else None
    raise error


def _refusal(response: httpx2.Response) -> KintsugiError | None:
    """What the service refused with; None where it is not the service that speaks."""
    try:
        document = response.json()
        return error_from(document["error"]) if document["type"].startswith(PROBLEM_TYPE) else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _understood(read: Callable[[httpx2.Response], T], response: httpx2.Response, address: str) -> T:
    try:
        return read(response)
    except InvalidInputError as error:
        message = f"the service at {address} answers {response.status_code} with what is no answer of its own: {error}"
        raise AwayError(message, field="url") from error
