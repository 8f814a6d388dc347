"""Signals ask a worker to leave, and are the script's own again afterwards."""

import signal
from collections.abc import Iterator

import pytest

from kintsugi.runtime.overlay import exits
from kintsugi.runtime.overlay.exits import ExitSignals

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    exits.forget_exit_event()
    yield
    exits.forget_exit_event()
    for number, handler in before.items():
        signal.signal(number, handler)


def handlers():
    return [signal.getsignal(number) for number in SIGNALS]


def test_the_second_signal_has_the_effect_that_it_had_before():
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    before = handlers()
    ExitSignals()
    for number in SIGNALS:
        signal.raise_signal(number)
    assert exits.capture_exit_event()
    assert handlers() == before


def test_a_handler_of_the_script_s_own_is_called_as_well_and_stays():
    heard = []
    signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    ExitSignals()
    signal.raise_signal(signal.SIGTERM)
    assert exits.capture_exit_event()
    signal.raise_signal(signal.SIGTERM)
    assert heard == [signal.SIGTERM, signal.SIGTERM]


def test_what_the_script_ignores_asks_for_nothing():
    """As SIGINT is in a shell script's background jobs."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ExitSignals()
    signal.raise_signal(signal.SIGINT)
    assert not exits.capture_exit_event()


def test_they_are_given_back_but_for_those_that_somebody_else_took():
    before = handlers()
    taken = ExitSignals()
    taken.give_back()
    assert handlers() == before
    taken = ExitSignals()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    taken.give_back()
    assert handlers() == [before[0], signal.SIG_IGN]
    assert not exits.capture_exit_event()
