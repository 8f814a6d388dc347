"""Whoever decides is told afterwards of all that the workers agreed on: also of those that were to leave and could not, or died."""

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest

from kintsugi.core.membership import EventKind, Membership
from kintsugi.runtime.control.decisions import JobRequest
from kintsugi.runtime.control.recovery import Recoveries
from kintsugi.runtime.control.roster import Roster
from kintsugi.runtime.selfgoverned.account import Account
from kintsugi.runtime.selfgoverned.words import Adopted
from tests.runtime.selfgoverned.courses import course_of

FIRST = course_of(4, 1)
W0, W1, W2, W3 = FIRST.membership.alive
FAILED, DRAINING, STAYING = EventKind.WORKER_FAILED, EventKind.WORKER_DRAINING, EventKind.WORKER_STAYING


def generation(alive, draining=(), *, used=None):
    """A generation of FIRST's job; its plan uses those that do not leave, or `used`, which has nothing else to do with a plan."""
    plan = SimpleNamespace(generation=1, workers=used or alive, policy=SimpleNamespace(value="dynamic_parallelism"))
    membership = replace(FIRST.membership, alive=alive, draining=draining)
    return replace(FIRST, membership=membership, decision=SimpleNamespace(plan=plan))


EVERYBODY = generation((W0, W1, W2, W3))
W3_LEAVES = generation((W0, W1, W2), (W3,))
W3_STAYS = generation((W0, W1), (W3,), used=(W0, W1, W3))


@pytest.fixture
def account():
    request = JobRequest(name="job", profile=FIRST.profile, cluster=FIRST.membership.cluster, settings=FIRST.settings)
    return Account(SimpleNamespace(handles={}), Roster(request), Recoveries())


def told(account, *courses):
    """Events of each change from one generation to the next; and who serves then, as whoever decides knows it."""
    membership, result = Membership.of(FIRST.membership.cluster), []
    for before, course in pairwise(courses):
        account.note(before, Adopted(course=course, noticed_at=0.0, agreed_at=0.0))
        events = account.untold()
        for event in events:
            membership = membership.after(event)
        result.append([(event.kind, event.worker) for event in events])
    return result, (membership.alive, membership.draining)


def test_one_that_leaves_and_dies_before_it_is_let_go_is_lost(account):
    events, known = told(account, EVERYBODY, W3_LEAVES, generation((W0, W1, W2)))
    assert events == [[(DRAINING, W3)], [(FAILED, W3)]]
    assert known == ((W0, W1, W2), ())
    assert account.recoveries.all[-1].lost == [W3]


def test_one_that_was_let_go_is_not_and_comes_back_as_anybody(account):
    assert told(account, EVERYBODY, W3_LEAVES)[0] == [[(DRAINING, W3)]]
    account.let_go(W3)
    assert told(account, W3_LEAVES, generation((W0, W1, W2)))[0] == [[]]
    events, _ = told(account, generation((W0, W1, W2)), EVERYBODY, generation((W0, W1, W2)))
    assert events == [[(EventKind.WORKER_JOINED, W3)], [(FAILED, W3)]]


def test_one_that_stays_for_others_are_lost_is_there_until_it_dies(account):
    events, known = told(account, EVERYBODY, W3_LEAVES, W3_STAYS)
    assert events[-1] == [(FAILED, W2), (STAYING, W3)]
    assert known == ((W0, W1, W3), ())
    events, _ = told(account, W3_STAYS, generation((W0, W1)))
    assert events == [[(FAILED, W3)]]


def test_one_that_stays_leaves_once_a_plan_can_do_without(account):
    later = generation((W0, W1), (W3,))
    events, known = told(account, EVERYBODY, W3_LEAVES, W3_STAYS, W3_STAYS, later, later)
    assert events[2:] == [[], [(DRAINING, W3)], []]
    assert known == ((W0, W1), (W3,))


def test_one_that_asks_to_leave_as_another_is_lost_is_simply_there(account):
    events, known = told(account, EVERYBODY, W3_STAYS)
    assert events == [[(FAILED, W2)]]
    assert known == ((W0, W1, W3), ())


def test_one_that_was_let_go_and_is_needed_after_all_is_lost_when_it_ends(account):
    told(account, EVERYBODY, W3_LEAVES)
    account.let_go(W3)
    events, _ = told(account, W3_LEAVES, W3_STAYS, generation((W0, W1)))
    assert events == [[(FAILED, W2), (STAYING, W3)], [(FAILED, W3)]]
