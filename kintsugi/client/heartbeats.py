"""Signs of life, sent by a thread of their own for as long as the trainer lives."""

import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

from kintsugi.client.client import Client
from kintsugi.client.connection import LOG
from kintsugi.core import checks
from kintsugi.core.errors import KintsugiError, UnavailableError
from kintsugi.core.heartbeats import HeartbeatAnswer, Heartbeats

CLOSING_SECONDS = 5.0
"""How long a sender that is closed may take for the beat that is under way."""


class HeartbeatSender:
    """Tells the service every `period_seconds` which workers of a host are alive; a context manager.

    A service that is away is told again at the next beat. A refusal ends the beats: `refusal` says why, and `on_refusal`
    hears of it in the sender's thread.

    Args:
        client: to send with; not closed at the end. One with a patience of one attempt keeps the period best.
        job: id of the job.
        host: where the workers live.
        alive: incarnations of the workers that are alive now, by worker; asked before every beat. Nobody: no beat. Where it
            raises, it is asked again for the next beat, and the log tells so.
        period_seconds: from one beat to the next; a third of the job's timeout or less.
        on_refusal: called once when the service refuses, as it does with workers that it declared failed.
    """

    def __init__(
        self,
        client: Client,
        job: str,
        host: str,
        alive: Callable[[], Mapping[str, int]],
        *,
        period_seconds: float,
        on_refusal: Callable[[KintsugiError], None] | None = None,
    ) -> None:
        checks.positive("period_seconds", period_seconds)
        self._client = client
        self._job = job
        self._host = host
        self._alive = alive
        self._period_seconds = period_seconds
        self._on_refusal = on_refusal
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeats", daemon=True)
        self._is_failure_told = False
        self.step: int | None = None
        """The optimizer update that was finished last; told with the next beat."""
        self.answer: HeartbeatAnswer | None = None
        """What the service said last."""
        self.refusal: KintsugiError | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Send no more."""
        self._closed.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(CLOSING_SECONDS)

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                self._beat()
            except UnavailableError:
                pass  # the next beat tells the same
            except KintsugiError as error:
                self._refused(error)
                return
            self._closed.wait(self._period_seconds)

    def _who_is_alive(self) -> dict[str, int]:
        """Nobody where that cannot be told now: a slip of the trainer's own code must not end the beats of those who live on."""
        try:
            alive = dict(self._alive())
        except Exception:
            if not self._is_failure_told:
                LOG.exception(
                    "who is alive cannot be told: no heartbeat is sent for %s of job %s until it can", self._host, self._job
                )
            self._is_failure_told = True
            return {}
        self._is_failure_told = False
        return alive

    def _beat(self) -> None:
        alive = self._who_is_alive()
        if not alive:
            return
        heartbeats = Heartbeats(
            host=self._host,
            workers=tuple(alive),
            observed_at=datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            step=self.step,
            incarnations={worker: incarnation for worker, incarnation in alive.items() if incarnation},
        )
        self.answer = self._client.heartbeat(self._job, heartbeats)

    def _refused(self, error: KintsugiError) -> None:
        self.refusal = error
        if self._on_refusal is not None:
            self._on_refusal(error)
