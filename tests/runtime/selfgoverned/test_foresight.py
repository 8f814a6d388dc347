"""Plans made ahead in the background are those for every loss that may come next."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace

from starlette.testclient import TestClient

from api.app import create_app
from api.settings import Settings
from kintsugi.client import Client
from kintsugi.core.decision import Decision
from kintsugi.runtime.control.decisions import ServiceDecisions
from kintsugi.runtime.selfgoverned.foresight import Foresight
from kintsugi.runtime.selfgoverned.packed import unpacked
from planner.contingency import after, fingerprint, losses
from tests.patience import eventually
from tests.runtime.jobs import tiny_gpt
from tests.runtime.runs import request_for
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


def test_the_service_makes_the_same_plans_and_what_it_lacks_is_made_here(tmp_path):
    settings = Settings(database_url=f"sqlite:///{tmp_path}/kintsugi.sqlite3")
    app = create_app(settings)
    with TestClient(app) as served, Client("http://testserver", transport=served._transport) as client:
        source = ServiceDecisions(client)
        decision = source.start(request_for(tiny_gpt(), 4, 1, min_dp=1))
        source.applied(0)
        assert app.state.desk.service.decider._ahead.wait_until_idle(240.0)
        course = replace(course_of(), decision=decision, applied=decision.plan)
        theirs = source.made_ahead(1)
        expected = {fingerprint(after(course.base(), loss)) for loss in losses(course.base())}
        some = dict(sorted(theirs.items())[: len(theirs) // 2])
        assert theirs.keys() == expected

        made: dict[str, bytes] = {}
        with closing(Foresight(Half(source, some))) as foresight:
            foresight.look_ahead(course)
            eventually(lambda: [made.update(hold.plans) for hold in foresight.made()], lambda _: len(made) == len(expected))
    assert made.keys() == expected
    assert {key: unpacked(made[key]).plan for key in theirs} == {key: decision.plan for key, decision in theirs.items()}


@dataclass(frozen=True)
class Half:
    """A service that had no time for more."""

    source: ServiceDecisions
    some: Mapping[str, Decision]

    def made_ahead(self, generation: int) -> Mapping[str, Decision]:
        assert self.source.made_ahead(generation).keys() >= self.some.keys()
        return self.some

    def keep(self, generation: int, agreement: str) -> None:
        self.source.keep(generation, agreement)
