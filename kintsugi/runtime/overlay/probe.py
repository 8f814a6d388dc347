"""Latency and rate of a link, measured from one end with a few short bursts: on a new link, or when somebody asks.

The rate is that of the second half of a burst at its receiver, so that neither a shaper's first tokens nor the sender's buffers
count. A receiver that waits for a processor sees pieces late, never early, so the rate is the slope of the line below all arrivals
that is nearest to them (Moon, Skelly and Towsley, "Estimation and removal of clock skew from network delay measurements", 1999).
Bursts double until two of them agree (TCP's window opens with them, and one may have fallen into a stall) or the bound is reached.
Then the other end does the same: the slower direction counts, and the first reduction over the link finds both windows open.
"""

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from kintsugi.core.errors import KintsugiError, UnavailableError
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


class Prober:
    """Probes links of this worker and answers the probes of its neighbours."""

    def __init__(self, links: Links, timeout_seconds: float) -> None:
        """Each answer may take `timeout_seconds`."""
        self._links, self._timeout_seconds = links, timeout_seconds
        self._answers: dict[tuple[str, str], Message] = {}
        """By neighbour and kind."""
        self._turns: dict[str, int] = {}
        """How often each link was to be measured: the latest one goes on."""
        self._changed = threading.Condition()
        self._arrivals: dict[str, list[tuple[float, int]]] = {}

    def measure(self, worker: str) -> Measured:
        """Probe the link with a neighbour.

        Raises:
            UnavailableError: it does not answer, the link is lost, or it was connected anew and is measured again.
        """
        with self._changed:
            turn = self._turns[worker] = self._turns.get(worker, 0) + 1
            self._changed.notify_all()
        rounds = [self._timed(lambda: self._asked(worker, ECHO, {}, turn=turn)) for _ in range(NUM_ECHOES)]
        forth = self._beta(worker, turn)
        back = self._asked(worker, RETURN, {}, num_timeouts=_RETURN_TIMEOUTS, turn=turn).fields["seconds_per_byte"]
        return Measured(alpha_seconds=min(rounds) / 2, beta_seconds_per_byte=max(forth, float(back)))

    def hear(self, worker: str, message: Message) -> None:
        """Take a message of one of the kinds of a probe."""
        if message.kind == ECHO:
            self._links.tell(worker, ECHOED, {})
        elif message.kind == BURST:
            self._see(worker, message)
        elif message.kind == RETURN:
            threading.Thread(target=self._return, args=(worker,), name=f"overlay-returns-{worker}", daemon=True).start()
        else:
            with self._changed:
                self._answers[worker, message.kind] = message
                self._changed.notify_all()

    def _beta(self, worker: str, turn: int | None = None) -> float:
        """Seconds per byte of the burst that agreed with an earlier one; of the middle one of the last three where none did."""
        found: list[float] = []
        num_bytes, sent = FIRST_BURST_BYTES, 0
        while sent + num_bytes <= MOST_BYTES:
            latest = float(self._burst(worker, num_bytes, turn)["seconds_per_byte"])
            if any(abs(latest - other) <= _TOLERANCE_RATIO * latest for other in found):
                return latest
            found.append(latest)
            sent += num_bytes
            num_bytes *= 2
        return statistics.median(found[-3:])

    def _burst(self, worker: str, num_bytes: int, turn: int | None) -> Any:
        payload = memoryview(bytes(_FRAME_BYTES))
        count = num_bytes // _FRAME_BYTES
        for index in range(count - 1):
            self._links.send(worker, Message(Channel.CONTROL, BURST, {"is_last": False, "is_first": index == 0}, payload))
        return self._asked(worker, BURST, {"is_last": True, "is_first": False}, payload, turn=turn).fields

    def _return(self, worker: str) -> None:
        """Measure the way to a neighbour that asked for it; without an answer it gives up."""
        with suppress(KintsugiError):
            self._links.tell(worker, RETURNED, {"seconds_per_byte": self._beta(worker)})

    def _asked(
        self,
        worker: str,
        kind: str,
        fields: dict[str, Any],
        payload: memoryview = NO_BYTES,
        *,
        num_timeouts: int = 1,
        turn: int | None = None,
    ) -> Message:
        key = worker, _ANSWERS[kind]
        with self._changed:
            self._require_turn(worker, turn)
            self._answers.pop(key, None)
        self._links.send(worker, Message(Channel.CONTROL, kind, fields, payload))
        seconds = num_timeouts * self._timeout_seconds
        with self._changed:
            is_told = self._changed.wait_for(lambda: key in self._answers or turn not in (None, self._turns.get(worker)), seconds)
            self._require_turn(worker, turn)
            if not is_told:
                raise UnavailableError(f"did not answer a probe within {self._timeout_seconds:g} s", field="worker", value=worker)
            return self._answers.pop(key)

    def _require_turn(self, worker: str, turn: int | None) -> None:
        """Require that this is the latest probe of a link: what answers is meant for that one.

        Raises:
            UnavailableError: it is not.
        """
        if turn not in (None, self._turns.get(worker)):
            raise UnavailableError("was connected anew, and is probed again", field="worker", value=worker)

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
