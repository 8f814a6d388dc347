"""Requests to one service: authorised, timed out, tried again, and its refusals as Kintsugi's own errors."""

import json
import os
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import httpx2
import stamina

from kintsugi.client.patience import Patience
from kintsugi.core.errors import InvalidInputError, KintsugiError, UnavailableError, error_from

AWAY = frozenset({429, 502, 503, 504})
"""What a service that restarts or has too much to do, or the proxy before it, answers."""
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
        *,
        parameters: Mapping[str, Any] | None = None,
        content: str | None = None,
        wait_seconds: float = 0.0,
    ) -> httpx2.Response:
        """The answer to one request, tried again while the service is away; a write carries one key through all attempts.

        Raises:
            KintsugiError: the service refused, or did not answer any attempt.
        """
        headers = {} if content is None else {"Content-Type": "application/json", "Idempotency-Key": uuid4().hex}
        request = self._http.build_request(
            method, path, params=_given(parameters), content=content, headers=headers, timeout=self._timeout(wait_seconds)
        )
        for attempt in self.attempts():
            with attempt, _told(self._address):
                response = self._http.send(request)
                _require_answer(response, self._address)
                return response
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
    """No answer, or one that asks to come back later: worth another attempt."""

    pause_seconds: float | None = None
    """What the service asks for before the next attempt."""


def path_of(job: str, *parts: str) -> str:
    """The path of a job, or of what belongs to it."""
    return "/".join(("/v1/jobs", quote(job, safe=""), *parts))


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
    except httpx2.TransportError as error:
        raise AwayError(f"the service at {address} does not answer: {str(error) or type(error).__name__}", field="url") from error


def _require_answer(response: httpx2.Response, address: str) -> None:
    if response.status_code in AWAY:
        error = AwayError(f"the service at {address} cannot answer now", field="url")
        asked = response.headers.get("Retry-After", "")
        error.pause_seconds = float(asked) if asked.isdecimal() else None
        raise error
    if response.is_error:
        raise _refusal(response)


def _refusal(response: httpx2.Response) -> KintsugiError:
    try:
        return error_from(response.json()["error"])
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError):
        return KintsugiError(f"the service answered {response.status_code} without a problem document", field="url")
