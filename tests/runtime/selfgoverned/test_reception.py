"""What the agent tells those that the members of a ring have agreed to take in."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from kintsugi.runtime.control.fleet import Fleet
from kintsugi.runtime.options import WorkerOptions
from kintsugi.runtime.ring.messages import Joiner
from kintsugi.runtime.selfgoverned.notes import Newcomer, Reachable
from kintsugi.runtime.selfgoverned.reception import Reception
from tests.runtime.jobs import tiny_gpt
from tests.runtime.selfgoverned.courses import agreement_of, course_of


def address_of(number: int) -> Reachable:
    return Reachable(("127.0.0.1", number), ("127.0.0.1", number + 1))


COURSE = course_of()
FOUNDERS = {worker: address_of(1_000 + 2 * index) for index, worker in enumerate(COURSE.members)}
AT = {"w08": address_of(2_000), "w09": address_of(2_010)}


@pytest.mark.parametrize("invited", ["w01", "w08"], ids=["a member that is lost", "another one that joined"])
def test_who_joins_is_told_of_all_members_also_of_one_that_is_lost_by_now_and_has_been_invited_again(invited):
    joined = tuple(Joiner(worker, at.ring, Newcomer(None, at.switchboard).text()) for worker, at in AT.items())
    members = (*COURSE.members, *AT)
    agreement = replace(agreement_of(COURSE, members, dict.fromkeys(COURSE.members, 2)), joined=joined)
    told = []
    fleet = Fleet(tiny_gpt, WorkerOptions())
    fleet.arrivals = {"w09": SimpleNamespace(worker="w09", send=told.append)}
    reception = Reception(fleet, FOUNDERS)
    for worker, at in AT.items():
        reception.expect(worker, None)
        reception.arrived(worker, at)
    reception.expect(invited, None)
    reception.arrived(invited, address_of(3_000))
    reception.begin(COURSE.settled(agreement))
    (begin,) = told
    assert begin.addresses == {**FOUNDERS, **AT}
    assert list(fleet.handles) == ["w09"]
