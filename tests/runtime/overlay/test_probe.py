"""The rate of a link, seen by a receiver that has to wait for a processor now and then."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kintsugi.core.errors import CommunicationError
from kintsugi.runtime.overlay.messages import NO_BYTES, Channel, Message
from kintsugi.runtime.overlay.probe import (
    BURST,
    ECHO,
    ECHOED,
    FIRST_BURST_BYTES,
    MOST_BYTES,
    RETURN,
    RETURNED,
    SEEN,
    OvertakenError,
    Prober,
    seconds_per_byte,
)

COUNT, PIECE_BYTES, TRUE = 24, 32_768, 1e-8


def arrivals(delays) -> list[tuple[float, int]]:
    return [(100.0 + index * PIECE_BYTES * TRUE + delay, PIECE_BYTES) for index, delay in enumerate(delays)]


@given(
    st.lists(st.floats(0.0, 0.5), min_size=COUNT, max_size=COUNT),
    st.integers(0, COUNT // 2 - 1),
    st.integers(COUNT // 2, COUNT - 1),
)
def test_what_is_seen_late_does_not_count_while_one_piece_of_either_half_is_seen_in_time(delays, one, other):
    delays[one] = delays[other] = 0.0
    assert seconds_per_byte(arrivals(delays)) == pytest.approx(TRUE, rel=1e-4)


def test_pieces_that_were_read_at_once_after_a_stall_are_no_fast_link():
    stall = [0.0] * 4 + [(15 - index) * PIECE_BYTES * TRUE for index in range(4, 15)] + [0.0] * 9
    assert seconds_per_byte(arrivals(stall)) == pytest.approx(TRUE, rel=1e-6)


def test_two_pieces_tell_a_rate():
    assert seconds_per_byte([(1.0, 10), (3.0, 10)]) == pytest.approx(0.2)


class Line:
    """The only link, with b, which answers at once: every burst was as fast as told, and its own were as `back`."""

    def __init__(self, rates: Sequence[float], back: float = 0.0) -> None:
        self.rates, self.back, self.bursts = list(rates), back, [0]
        self.peer, self.is_up = SimpleNamespace(worker="b"), True
        self.prober = Prober(self, 30.0)

    def get(self, _worker: str) -> "Line | None":
        return self if self.is_up else None

    def send(self, message: Message) -> None:
        if message.kind == ECHO:
            self.answer(ECHOED)
        elif message.kind == RETURN:
            self.answer(RETURNED, seconds_per_byte=self.back)
        elif message.kind == BURST:
            self.bursts[-1] += message.num_bytes
            if message.fields["is_last"]:
                self.bursts.append(0)
                self.answer(SEEN, seconds_per_byte=self.rates[len(self.bursts) - 2])

    def answer(self, kind: str, **fields: float) -> None:
        self.prober.hear("b", Message(Channel.CONTROL, kind, fields, NO_BYTES))

    def measured_rate(self) -> float:
        return self.prober.measure(self.prober.turn(self)).beta_seconds_per_byte

    @contextmanager
    def waiting_in_vain(self) -> Iterator[None]:
        """With a probe that waits for its first answer, which never comes, and is overtaken before long."""
        send, is_asked, ends = self.send, threading.Event(), []

        def send_first(_message: Message) -> None:
            self.send = send
            is_asked.set()

        def measure() -> None:
            with pytest.raises(OvertakenError, match="connected anew"):
                self.measured_rate()
            ends.append(True)

        self.send = send_first
        waiting = threading.Thread(target=measure, daemon=True)
        waiting.start()
        assert is_asked.wait(120.0)
        yield
        waiting.join(120.0)
        assert ends == [True]


@pytest.mark.parametrize(
    ("rates", "found", "num_bursts"),
    [
        ([4e-8, 2e-8, 1e-8, 1.01e-8], 1.01e-8, 4),  # the window opens
        ([1e-8, 1e-8], 1e-8, 2),
        ([1e-8, 1e-10, 1e-8], 1e-8, 3),  # one was read at once behind a stall
        ([4e-8, 9e-8, 1e-8, 3e-8, 1e-8], 1e-8, 5),
        ([6e-8, 5e-8, 4e-8, 1e-8, 3e-8, 2e-8], 2e-8, 6),  # none agree
    ],
)
def test_a_rate_is_one_that_two_bursts_agree_on(rates, found, num_bursts):
    line = Line(rates)
    assert line.measured_rate() == found
    assert line.bursts[:-1] == list(accumulate([FIRST_BURST_BYTES] * num_bursts, lambda size, _: size * 2))
    assert sum(line.bursts) <= MOST_BYTES


@pytest.mark.parametrize(("back", "found"), [(3e-8, 3e-8), (1e-9, 1e-8)])
def test_the_slower_direction_counts(back, found):
    assert Line([1e-8, 1e-8], back).measured_rate() == found


@pytest.mark.parametrize(
    "told", [{}, *({"seconds_per_byte": rate} for rate in ("1", None, True, -1.0, float("nan"), float("inf")))]
)
@pytest.mark.parametrize("kind", [SEEN, RETURNED])
def test_an_answer_without_a_rate_costs_the_link_and_leaves_no_probe_unfinished(kind, told):
    with pytest.raises(CommunicationError, match="without a rate"):
        Line([]).answer(kind, **told)


def test_a_link_that_was_connected_anew_is_measured_once_and_the_earlier_probe_ends():
    """What answers the earlier probe, or is left of its burst, is not taken for an answer to the later one."""
    line = Line([1e-8, 1e-8])
    with line.waiting_in_vain():
        line.answer(SEEN, seconds_per_byte=5.0)
        assert line.measured_rate() == 1e-8


def test_the_probe_of_a_link_that_is_lost_does_not_wait_for_its_answer():
    line = Line([1e-8, 1e-8])
    with line.waiting_in_vain():
        line.is_up = False
        line.prober.heed_links()
    with pytest.raises(OvertakenError):
        line.measured_rate()


def test_over_a_connection_that_has_ended_nothing_is_measured():
    def send(_message: Message) -> None:
        raise CommunicationError("the connection has ended", field="link")

    line = Line([])
    line.send = send
    with pytest.raises(OvertakenError):
        line.measured_rate()


def test_the_rest_of_a_burst_that_began_over_an_earlier_connection_is_not_answered():
    told = []
    prober = Prober(SimpleNamespace(tell=lambda _worker, kind, _fields: told.append(kind)), 1.0)
    prober.hear("b", Message(Channel.CONTROL, BURST, {"is_last": True, "is_first": False}, NO_BYTES))
    assert told == []
