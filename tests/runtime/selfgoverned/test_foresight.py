"""Plans made ahead in the background are those for every loss that may come next."""

from contextlib import closing

from kintsugi.runtime.selfgoverned.foresight import Foresight
from planner.contingency import after, fingerprint, losses
from tests.runtime.runs import eventually
from tests.runtime.selfgoverned.courses import course_of


def test_every_loss_is_planned_for():
    course = course_of()
    expected = {fingerprint(after(course.base(), loss)) for loss in losses(course.base())}
    made: set[str] = set()
    with closing(Foresight()) as foresight:
        foresight.look_ahead(course)
        eventually(lambda: made.update(*(hold.plans for hold in foresight.made())) or made, lambda seen: seen == expected)
    assert made == expected


def test_nothing_is_made_for_a_generation_that_is_over():
    foresight = Foresight()
    foresight.look_ahead(course_of())
    foresight.close()
    list(foresight.made())
    assert list(foresight.made()) == []
