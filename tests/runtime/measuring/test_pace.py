"""Hosts that give devices what to do: whoever is slower decides, over whole steps and not layer by layer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kintsugi.runtime.measuring.pace import layer_seconds, paced
from kintsugi.runtime.measuring.sweeper import KINDS, Samples, Times

SECONDS = st.integers(0, 100).map(float)
PIECES = st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=8)


def one_by_one(pieces):
    """When each piece is done, by two clocks."""
    host = device = 0.0
    for giving, doing in pieces:
        host += giving
        device = max(device + doing, host)
        yield device


@given(PIECES)
def test_pieces_are_done_when_two_clocks_say_so(pieces):
    taken, lag = paced(pieces)
    assert sum(taken) == list(one_by_one(pieces))[-1]
    assert lag == sum(taken) - sum(giving for giving, _ in pieces) >= 0
    assert all(seconds >= doing for seconds, (_, doing) in zip(taken, pieces, strict=True))


@given(PIECES)
def test_over_and_over_it_takes_what_the_slower_one_takes_for_all(pieces):
    lag = 0.0
    for _ in range(2):
        taken, lag = paced(pieces, lag)
    assert sum(taken) == max(map(sum, zip(*pieces, strict=True)))


def samples_of(host, device, **other):
    """A layer whose times are all the same but for some, which are those of both."""
    hosts, devices = ({kind: [other.get(kind, seconds)] for kind in KINDS} for seconds in (host, device))
    return Samples(host=Times(**hosts), device=Times(**devices))


def test_one_layer_that_keeps_the_device_busy_hides_what_the_host_takes_for_the_others():
    layers = [samples_of(3.0, 1.0), samples_of(3.0, 1.0), samples_of(1.0, 20.0)]
    found = layer_seconds(layers)
    assert [own.forward for own in found] == [own.backward for own in found] == [1.0, 1.0, 20.0]
    assert sum(own.optimizer for own in found) == 22.0 + 26.0 + 4.0, (
        "norms while it is behind; updates, and a first pass, from nothing"
    )


def test_where_the_host_is_slower_on_the_whole_it_decides():
    found = layer_seconds([samples_of(3.0, 1.0), samples_of(3.0, 1.0), samples_of(1.0, 2.0)])
    assert sum(own.forward + own.backward for own in found) == 14.0


def test_what_the_first_micro_batch_takes_longer_belongs_to_the_update():
    slower, faster = samples_of(2.0, 2.0, first_forward=2.5), samples_of(2.0, 2.0, first_backward=1.5)
    assert [own.optimizer for own in layer_seconds([slower, faster])] == pytest.approx([4.5, 3.5])
    assert [own.forward + own.backward for own in layer_seconds([slower, faster])] == [4.0, 4.0]


def test_a_host_that_waits_in_a_first_pass_for_what_lets_it_lead_is_not_slower():
    waiting = samples_of(2.0, 2.0)
    waiting.host.first_forward = [50.0]
    assert [own.optimizer for own in layer_seconds([waiting])] == [4.0]
