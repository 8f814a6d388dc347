"""Time in which this very process was away, told from time in which one of its threads was busy."""

import threading

from kintsugi.runtime.presence import Presence
from tests.patience import eventually
from tests.runtime.pausing import be_away


def test_a_gap_between_two_looks_is_an_absence_that_ends_with_the_second():
    now = [100.0]
    presence = Presence(clock=lambda: now[0])
    for later in (101.2, 102.4, 102.4):
        now[0] = later
        assert presence.back_at == 0.0
    for later, back_at in ((103.7, 103.7), (104.9, 103.7), (200.0, 200.0), (200.1, 200.0)):
        now[0] = later
        assert presence.back_at == back_at
    presence.close()


def test_its_thread_tells_a_process_that_is_away_from_a_caller_who_does_not_look():
    now = [100.0]
    presence = Presence(clock=lambda: now[0])
    now[0] = 150.0
    presence.begin()
    for later in (151.0, 152.0, 153.0):
        now[0] = later
        assert eventually(lambda: presence._looked_at, lambda at, later=later: at == later) == later
    assert presence.back_at == 0.0
    presence.close()
    assert not any(thread.name == "presence" for thread in threading.enumerate())


def test_a_process_that_does_nothing_at_all_is_away():
    presence = Presence()
    presence.begin()
    be_away(1.4)
    assert presence.back_at > 0.0
    presence.close()
