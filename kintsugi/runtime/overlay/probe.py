"""Latency and rate of a link, measured from one end with a few short bursts: on a new link, or when somebody asks.

The rate is that of the second half of a burst at its receiver, so that neither a shaper's first tokens nor the sender's buffers
count. A receiver that waits for a processor sees pieces late, never early, so the rate is the slope of the line below all arrivals
that is nearest to them (Moon, Skelly and Towsley, "Estimation and removal of clock skew from network delay measurements", 1999).
Bursts double until two of them agree (TCP's window opens with them, and one may have fallen into a stall) or the bound is reached.
Then the other end does the same: the slower direction counts, and the first reduction over the link finds both windows open.
"""

import math
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from kintsugi.core.errors import CommunicationError, KintsugiError, UnavailableError
from kintsugi.runtime.overlay.link import Link
from kintsugi.runtime.overlay.links import Links
from kintsugi.runtime.overlay.messages import NO_BYTES, Channel, Message

ECHO, ECHOED, BURST, SEEN = "probe_echo", "probe_echoed", "probe_burst", "probe_seen"
RETURN, RETURNED = "probe_return", "probe_returned"
KINDS = frozenset({ECHO, ECHOED, BURST, SEEN, RETURN, RETURNED})
NUM_ECHOES = 5
FIRST_BURST_BYTES = 512 * 2**10
MOST_BYTES = 32 * 2**20
"""That one probe sends in all."""
_FRAME_BYTES = 64 * 2**10
_LEAST_ARRIVALS = 2
_ANSWERS = {ECHO: ECHOED, BURST: SEEN, RETURN: RETURNED}
_TOLERANCE_RATIO = 0.1
_RETURN_TIMEOUTS = 6
"""For all bursts of the other end, in timeouts of a single one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a probe found."""

    alpha_seconds: float
    """Half of the shortest time there and back."""
    beta_seconds_per_byte: float


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """The turn of one link to be measured; the next one with the same neighbour ends it, and so does the end of the link."""

    link: Link


class OvertakenError(UnavailableError):
    """The link that is probed is gone, or probed anew: what is found over it is of no use, and nothing to tell."""


class Prober:
    """Probes links of this worker and answers the probes of its neighbours."""

    def __init__(self, links: Links, timeout_seconds: float) -> None:
        """Each answer may take `timeout_seconds`."""
        self._links, self._timeout_seconds = links, timeout_seconds
        self._answers: dict[tuple[str, str], Message] = {}
        """By neighbour and kind."""
        self._turns: dict[str, Turn] = {}
        """The latest one with each neighbour."""
        self._changed = threading.Condition()
        self._arrivals: dict[str, list[tuple[float, int]]] = {}

    def turn(self, link: Link) -> Turn:
        """Let a link have its turn, which `measure` takes."""
        with self._changed:
            turn = self._turns[link.peer.worker] = Turn(link)
            self._changed.notify_all()
            return turn

    def measure(self, turn: Turn) -> Measured:
        """Probe a link.

        Raises:
            OvertakenError: the link is lost, was connected anew, or is measured again.
            UnavailableError: the neighbour does not answer.
        """
        link = turn.link
        rounds = [self._timed(lambda: self._asked(link, ECHO, {}, turn=turn)) for _ in range(NUM_ECHOES)]
        forth = self._beta(link, turn)
        back = self._asked(link, RETURN, {}, num_timeouts=_RETURN_TIMEOUTS, turn=turn).fields["seconds_per_byte"]
        return Measured(alpha_seconds=min(rounds) / 2, beta_seconds_per_byte=max(forth, float(back)))

    def heed_links(self) -> None:
        """Links have come or gone: who waits for an answer over one that is gone waits no more."""
        with self._changed:
            self._changed.notify_all()

    def hear(self, worker: str, message: Message) -> None:
        """Take a message of one of the kinds of a probe.

        Raises:
            CommunicationError: it should tell a rate, and tells none.
        """
        if message.kind == ECHO:
            self._links.tell(worker, ECHOED, {})
        elif message.kind == BURST:
            self._see(worker, message)
        elif message.kind == RETURN:
            threading.Thread(target=self._return, args=(worker,), name=f"overlay-returns-{worker}", daemon=True).start()
        elif message.kind != ECHOED and not _is_rate(message.fields.get("seconds_per_byte")):
            raise CommunicationError("answered a probe without a rate", field="link")
        else:
            with self._changed:
                self._answers[worker, message.kind] = message
                self._changed.notify_all()

    def _beta(self, link: Link, turn: Turn | None = None) -> float:
        """Seconds per byte of the burst that agreed with an earlier one; of the middle one of the last three where none did."""
        found: list[float] = []
        num_bytes, sent = FIRST_BURST_BYTES, 0
        while sent + num_bytes <= MOST_BYTES:
            latest = float(self._burst(link, num_bytes, turn)["seconds_per_byte"])
            if any(abs(latest - other) <= _TOLERANCE_RATIO * latest for other in found):
                return latest
            found.append(latest)
            sent += num_bytes
            num_bytes *= 2
        return statistics.median(found[-3:])

    def _burst(self, link: Link, num_bytes: int, turn: Turn | None) -> Any:
        payload = memoryview(bytes(_FRAME_BYTES))
        count = num_bytes // _FRAME_BYTES
        for index in range(count - 1):
            self._send(link, Message(Channel.CONTROL, BURST, {"is_last": False, "is_first": index == 0}, payload))
        return self._asked(link, BURST, {"is_last": True, "is_first": False}, payload, turn=turn).fields

    def _return(self, worker: str) -> None:
        """Measure the way to a neighbour that asked for it; without an answer it gives up."""
        link = self._links.get(worker)
        if link is not None:
            with suppress(KintsugiError):
                self._send(link, Message(Channel.CONTROL, RETURNED, {"seconds_per_byte": self._beta(link)}))

    def _asked(
        self,
        link: Link,
        kind: str,
        fields: dict[str, Any],
        payload: memoryview = NO_BYTES,
        *,
        num_timeouts: int = 1,
        turn: Turn | None = None,
    ) -> Message:
        worker = link.peer.worker
        key = worker, _ANSWERS[kind]
        with self._changed:
            self._require_latest(link, turn)
            self._answers.pop(key, None)
        self._send(link, Message(Channel.CONTROL, kind, fields, payload))
        seconds = num_timeouts * self._timeout_seconds
        with self._changed:
            is_told = self._changed.wait_for(lambda: key in self._answers or self._is_overtaken(link, turn), seconds)
            self._require_latest(link, turn)
            if not is_told:
                raise UnavailableError(f"did not answer a probe within {self._timeout_seconds:g} s", field="worker", value=worker)
            return self._answers.pop(key)

    @staticmethod
    def _send(link: Link, message: Message) -> None:
        try:
            link.send(message)
        except CommunicationError as error:
            raise _overtaken(link) from error

    def _is_overtaken(self, link: Link, turn: Turn | None) -> bool:
        worker = link.peer.worker
        return self._links.get(worker) is not link or (turn is not None and self._turns.get(worker) is not turn)

    def _require_latest(self, link: Link, turn: Turn | None) -> None:
        """Require that this is the latest probe of the present link: what answers is meant for that one.

        Raises:
            OvertakenError: it is not.
        """
        if self._is_overtaken(link, turn):
            raise _overtaken(link)

    def _see(self, worker: str, message: Message) -> None:
        if message.fields["is_first"]:
            self._arrivals[worker] = []
        arrivals = self._arrivals.setdefault(worker, [])
        arrivals.append((time.perf_counter(), message.num_bytes))
        if message.fields["is_last"] and len(arrivals) > _LEAST_ARRIVALS:  # what began over an earlier connection is no burst
            self._links.tell(worker, SEEN, {"seconds_per_byte": seconds_per_byte(arrivals[len(arrivals) // 2 :])})

    @staticmethod
    def _timed(ask: Callable[[], object]) -> float:
        began = time.perf_counter()
        ask()
        return time.perf_counter() - began


def _is_rate(told: object) -> bool:
    return type(told) in (int, float) and 0.0 <= told < math.inf  # type: ignore[operator]


def _overtaken(link: Link) -> OvertakenError:
    return OvertakenError("was lost or connected anew, or is probed again", field="link", value=link.peer.worker)


def seconds_per_byte(arrivals: Sequence[tuple[float, int]]) -> float:
    """The slope of the highest line that no piece arrived before: of the edge of the lower convex hull above the mean of the bytes.

    Args:
        arrivals: moment in seconds and size in bytes of every piece, in order; at least two.
    """
    points = list(zip(accumulate(count for _, count in arrivals), (moment for moment, _ in arrivals), strict=True))
    mean = sum(at for at, _ in points) / len(points)
    hull: list[tuple[int, float]] = []
    for point in points:
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) >= _slope(hull[-1], point):
            hull.pop()
        hull.append(point)
    first = max(index for index, (at, _) in enumerate(hull[:-1]) if at <= mean)
    return max(_slope(hull[first], hull[first + 1]), 0.0)


def _slope(one: tuple[int, float], other: tuple[int, float]) -> float:
    return (other[1] - one[1]) / (other[0] - one[0])
