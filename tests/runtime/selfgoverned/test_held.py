"""Plans that are held are found by what happened; everything else is planned on the spot, to the same end."""

import pytest

from kintsugi.core.errors import StateLostError
from kintsugi.runtime.selfgoverned import held as module
from kintsugi.runtime.selfgoverned.held import HeldPlans, decided
from kintsugi.runtime.selfgoverned.packed import packed, unpacked
from planner.contingency import after, losses, plans_ahead
from tests.runtime.selfgoverned.courses import course_of
from tests.runtime.selfgoverned.test_course import untimed


def test_held_plans_are_the_planners_own(monkeypatch):
    base, held = course_of().base(), HeldPlans()
    held.hold(0, {ahead.fingerprint: packed(ahead.decision) for ahead in plans_ahead(base)})
    snapshots = [after(base, loss) for loss in losses(base)]
    expected = [untimed(decided(snapshot, is_untrained=False)) for snapshot in snapshots]
    assert len(held) == len(snapshots) == 10
    monkeypatch.setattr(module, "replan", None)  # nothing is planned any more
    assert [untimed(unpacked(held.answer(snapshot, is_untrained=False))) for snapshot in snapshots] == expected


def test_what_nobody_planned_ahead_for_is_planned():
    base, held = course_of().base(), HeldPlans()
    snapshot = after(base, next(losses(base)))
    assert untimed(unpacked(held.answer(snapshot, is_untrained=False))) == untimed(decided(snapshot, is_untrained=False))


def test_a_later_generations_plans_replace_those_before():
    held = HeldPlans()
    held.hold(1, {"a": b"1", "b": b"2"})
    held.hold(2, {"c": b"3"})
    held.hold(1, {"d": b"4"})
    assert len(held) == 1


def test_before_the_first_step_lost_layers_come_from_the_seed():
    course = course_of(1, 4)
    snapshot = after(course.base(), next(losses(course.base())))
    with pytest.raises(StateLostError):
        decided(snapshot, is_untrained=False)
    assert set(decided(snapshot, is_untrained=True).plan.workers) <= set(snapshot.alive)
