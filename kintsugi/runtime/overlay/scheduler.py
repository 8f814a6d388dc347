"""The way to the scheduler, wherever it runs."""

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from kintsugi.client import Client
from kintsugi.client.patience import Patience
from kintsugi.core.errors import InvalidInputError, KintsugiError, UnavailableError
from kintsugi.core.overlay import Overlay
from kintsugi.core.overlay_messages import OverlayEvent, OverlayHeartbeat, OverlayHeartbeatAnswer, OverlayLog


class Scheduler(Protocol):
    """What an agent says to and hears from the scheduler; safe for several threads."""

    def post(self, event: OverlayEvent) -> Overlay:
        """Tell what happened and get the overlay after it."""

    def overlay(self, after_generation: int | None, wait_seconds: float, term: int) -> Overlay | None:
        """The overlay once it is newer than the generation given; None when it was not within the time."""

    def beat(self, heartbeat: OverlayHeartbeat) -> OverlayHeartbeatAnswer:
        """Tell that this worker lives."""

    def moved(self, url: str) -> None:
        """It answers at another address from now on."""

    def close(self) -> None:
        """Close all connections."""


class HttpScheduler:
    """A scheduler behind `kintsugi serve`. Of several addresses the one that answered last is asked first."""

    def __init__(self, urls: Sequence[str], job: str, *, token: str | None = None, timeout_seconds: float = 10.0) -> None:
        """Nothing is asked yet.

        Raises:
            InvalidInputError: no address is given.
        """
        if not urls:
            raise InvalidInputError("must name the scheduler's URL", field="service")
        self._job, self._token = job, token
        self._patience = Patience(timeout_seconds=timeout_seconds, attempts=1, connect_seconds=min(timeout_seconds, 5.0))
        self._clients: dict[str, Client] = {}
        self._urls = list(dict.fromkeys(urls))
        self._lock = threading.Lock()
        self._is_closed = False

    def post(self, event: OverlayEvent) -> Overlay:
        """Tell what happened and get the overlay after it."""
        return self._client.post_overlay_event(self._job, event)

    def overlay(self, after_generation: int | None, wait_seconds: float, term: int) -> Overlay | None:
        """The overlay once it is newer than the generation given; None when it was not within the time."""
        return self._client.overlay(self._job, after_generation=after_generation, wait_seconds=wait_seconds, term=term)

    def beat(self, heartbeat: OverlayHeartbeat) -> OverlayHeartbeatAnswer:
        """Tell that this worker lives; where nobody answers, the next address is asked from then on."""
        try:
            return self._client.overlay_heartbeat(self._job, heartbeat)
        except UnavailableError:
            with self._lock:
                self._urls.append(self._urls.pop(0))
            raise

    def log(self, after: int, wait_seconds: float) -> OverlayLog:
        """Lines of the log behind number `after`, waited for."""
        return self._client.overlay_log(self._job, after=after, wait_seconds=wait_seconds)

    def depose(self, worker: str, incarnation: int, term: int) -> None:
        """Tell those at the other addresses, should they be back, that one of `term` took over: they decide nothing more."""
        heartbeat = OverlayHeartbeat(worker=worker, incarnation=incarnation, term=term)
        for url in self._urls[1:]:
            with suppress(KintsugiError):
                self._client_at(url).overlay_heartbeat(self._job, heartbeat)

    def moved(self, url: str) -> None:
        """Ask this address first."""
        with self._lock:
            self._urls = [url, *(one for one in self._urls if one != url)]

    def close(self) -> None:
        """Close all connections; no further ones are made, whoever still asks."""
        with self._lock:
            self._is_closed = True
        for client in self._clients.values():
            client.close()

    @property
    def _client(self) -> Client:
        return self._client_at(self._urls[0])

    def _client_at(self, url: str) -> Client:
        with self._lock:
            if self._is_closed:
                raise UnavailableError("is not asked any more: this worker ends", field="service")
            if url not in self._clients:
                self._clients[url] = Client(url, token=self._token, patience=self._patience)
            return self._clients[url]
