"""The service as a store of torch.distributed: what agents tell each other survives the death of any of them."""

import base64
import hashlib
import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar
from uuid import uuid4

import httpx2
import tenacity
from torch._C._distributed_c10d import Store
from torch.distributed import DistStoreError

from kintsugi.client.answers import AwayError, answer_of
from kintsugi.client.bounds import AnswerTime, answered
from kintsugi.client.connection import CA_VARIABLE, TOKEN_VARIABLE, authorization, reason_of, trusted
from kintsugi.core.errors import InvalidInputError, KintsugiError, NotFoundError, UnauthenticatedError

T = TypeVar("T")

LOG = logging.getLogger("kintsugi.rendezvous")
SHORTEST_PAUSE_SECONDS = 0.01
LONGEST_PAUSE_SECONDS = 0.25
TIMEOUT_SECONDS = 10.0
MOST_LETTERS = 200
"""Of a segment of a path at the service."""
IMPATIENT_SECONDS = 2.0
"""For the answer where there is a later request that is as good."""
ATTEMPTS = 6
"""Of a request while the service is away; their pauses take 3 to 8 seconds together."""


@dataclass(frozen=True, slots=True)
class Value:
    """What is under a key."""

    content: bytes
    version: int
    is_set: bool = True


@dataclass(frozen=True, slots=True)
class _Told:
    """A value as the service tells it."""

    value: str
    version: int
    is_set: bool = True


class Keys:
    """Values of one run at the service, changed by compare-and-swap; a change whose answer was lost counts once.

    Who is not patient asks once: there is a later request that is as good. What somebody else says in the service's place, as a
    proxy does, is its absence.
    """

    def __init__(self, url: str, run: str, *, token: str | None = None, transport: httpx2.BaseTransport | None = None) -> None:
        self._address = url
        self._answer_time = AnswerTime()
        self._http = httpx2.Client(
            base_url=f"{url}/v1/rendezvous/{_segment(run)}/",
            headers=authorization(token),
            verify=trusted(os.environ.get(CA_VARIABLE)),
            transport=transport,
        )

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def get(self, key: str, *, is_patient: bool = True) -> Value | None:
        """What is under a key; None where nothing is.

        Raises:
            ConnectionError: the service does not answer, or refuses.
        """
        try:
            return self._send("GET", key, _value, is_patient=is_patient)
        except NotFoundError:
            return None

    def put(self, key: str, content: bytes, *, expected: int | None = None, generation: int = 0, is_patient: bool = True) -> Value:
        """Put a value under a key if its version is `expected` (0: nothing there; None: anything); what is there now.

        Raises:
            ConnectionError: the service does not answer, or refuses.
        """
        body = {"value": base64.b64encode(content).decode(), "expected_version": expected, "generation": generation}
        return self._send("PUT", key, _value, body, is_patient=is_patient)

    def drop(self, key: str) -> None:
        """Forget what is under a key.

        Raises:
            ConnectionError: the service does not answer, or refuses.
        """
        with suppress(NotFoundError):
            self._send("DELETE", key, _require_nothing)

    def _send(self, method: str, key: str, read: Callable[[httpx2.Response], T], body: Any = None, *, is_patient: bool = True) -> T:
        """What `read` makes of the answer.

        Raises:
            ConnectionError: the service does not answer, or not in time.
            NotFoundError: nothing is under the key.
            PermissionError: it refuses.
        """
        headers = {} if method == "GET" else {"Idempotency-Key": uuid4().hex}  # the same one through all attempts
        seconds = TIMEOUT_SECONDS if is_patient else IMPATIENT_SECONDS
        request = self._http.build_request(
            method, _segment(key), json=body, headers=headers, timeout=seconds, extensions={"trace": self._answer_time.bound}
        )
        for attempt in _attempts(ATTEMPTS if is_patient else 1):
            with attempt:
                return self._answer(request, read, seconds)
        raise AssertionError("the last attempt returns or raises")

    def _answer(self, request: httpx2.Request, read: Callable[[httpx2.Response], T], seconds: float) -> T:
        try:
            with self._answer_time.within(seconds):
                return answered(self._http, request, read, self._address)
        except httpx2.RequestError as error:
            reason = reason_of(error, self._address)
            raise ConnectionError(f"the service at {self._address} does not answer: {reason}") from error
        except AwayError as error:
            raise ConnectionError(error.message) from error
        except NotFoundError:
            raise
        except KintsugiError as error:
            raise PermissionError(f"the service refuses: {error}{_way_in(error)}") from error


def _attempts(most: int) -> tenacity.Retrying:
    """At growing pauses with jitter, so that the agents of a job do not come back to the service all at once."""
    return tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(ConnectionError),
        stop=tenacity.stop_after_attempt(most),
        wait=tenacity.wait_exponential(multiplier=0.1, max=5.0) + tenacity.wait_random(0.0, 1.0),
        before_sleep=_tell_of_retry,
        reraise=True,
    )


def _tell_of_retry(state: tenacity.RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome is not None else None
    LOG.warning("%s; attempt %d of %d in %.2g s", error, state.attempt_number + 1, ATTEMPTS, state.upcoming_sleep)


class ServiceStore(Store):
    """torch's key-value store over `Keys`; waiting is asking again at growing pauses."""

    def __init__(self, keys: Keys, *, timeout_seconds: float) -> None:
        super().__init__()
        self._keys = keys
        self._wait_seconds = timeout_seconds
        self.require_senders: Callable[[], None] = lambda: None
        """Raises where it is known that what is waited for will not come."""

    def set(self, key: str, value: str | bytes) -> None:
        """Put a value under a key."""
        self._keys.put(key, _bytes(value))

    def get(self, key: str) -> bytes:
        """Wait for a value and take it."""
        self.wait([key])
        found = self._keys.get(key)
        if found is None:
            raise DistStoreError(f"{key} was deleted while it was waited for")
        return found.content

    def add(self, key: str, amount: int) -> int:
        """Count on; the new sum."""
        while True:
            found = self._keys.get(key)
            total = amount + (int(found.content) if found is not None else 0)
            if self._keys.put(key, str(total).encode(), expected=found.version if found is not None else 0).is_set:
                return total

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Put `desired` where `expected` is, or where it is empty and nothing is; what is there then."""
        found = self._keys.get(key)
        if found is None and _bytes(expected):
            return _bytes(expected)
        if found is not None and found.content != _bytes(expected):
            return found.content
        return self._keys.put(key, _bytes(desired), expected=found.version if found is not None else 0).content

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys have values."""
        return all(self._keys.get(key) is not None for key in keys)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Block until all keys have values."""
        seconds = timeout.total_seconds() if timeout is not None else self._wait_seconds
        deadline, pause = time.monotonic() + seconds, SHORTEST_PAUSE_SECONDS
        while not self.check(keys):
            if time.monotonic() > deadline:
                raise DistStoreError(f"{', '.join(keys)} did not come within {seconds:g} s")
            self.require_senders()
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def delete_key(self, key: str) -> bool:
        """Forget a value; whether there was one."""
        was_there = self._keys.get(key) is not None
        self._keys.drop(key)
        return was_there

    def set_timeout(self, timeout: timedelta) -> None:
        """How long `get` and `wait` wait from now on."""
        self._wait_seconds = timeout.total_seconds()


def _segment(name: str) -> str:
    """A name as one segment of a path: torch's own have slashes, and where the run's id is long, too many letters."""
    segment = base64.urlsafe_b64encode(name.encode()).decode().rstrip("=") or "-"
    return segment if len(segment) <= MOST_LETTERS else hashlib.sha256(name.encode()).hexdigest()


def _way_in(refusal: KintsugiError) -> str:
    """What torchrun may be given where a token is missing."""
    if not isinstance(refusal, UnauthenticatedError):
        return ""
    return f" (torchrun takes it from the file that --rdzv-conf token_file=FILE names, or from {TOKEN_VARIABLE})"


def _value(response: httpx2.Response) -> Value:
    told = answer_of(_Told)(response)
    try:
        return Value(base64.b64decode(told.value, validate=True), told.version, told.is_set)
    except ValueError as error:
        raise InvalidInputError("is no base64", field="value") from error


def _require_nothing(response: httpx2.Response) -> None:
    if response.status_code != httpx2.codes.NO_CONTENT:
        raise InvalidInputError("says something where nothing is to be said", field="value")


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
