"""What the service says is understood as our own codec understands it, and so is what a later service says."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.http.description import EXAMPLES
from kintsugi.client.answers import noun_of
from kintsugi.core import codec
from kintsugi.core.cluster import Cluster
from kintsugi.core.decision import Decision, PlanEstimate
from kintsugi.core.ending import EndingRecord
from kintsugi.core.errors import InvalidInputError
from kintsugi.core.handling import ApprovalPage, ApprovalRecord
from kintsugi.core.heartbeats import HeartbeatAnswer
from kintsugi.core.leases import ContingencyPage, LeaseRecord
from kintsugi.core.membership import Event
from kintsugi.core.messages import Answer, EventPage, JobPage, JobView, Report, ReportPage, ReportRecord
from kintsugi.core.overlay import Overlay
from kintsugi.core.overlay_messages import OverlayHeartbeatAnswer, OverlayLog, OverlaySigns
from kintsugi.core.plan import Plan
from kintsugi.core.profile import Profile
from tests.core import samples

JOB = "/v1/jobs/{job}"
ANSWERS = {
    f"POST {JOB}/events": Answer,
    f"GET {JOB}/plan": Answer,
    f"GET {JOB}/plans/{{generation}}": Answer,
    f"GET {JOB}": JobView,
    "GET /v1/jobs": JobPage,
    f"GET {JOB}/approvals": ApprovalPage,
    f"POST {JOB}/plans/{{generation}}/approval": ApprovalRecord,
    f"GET {JOB}/events": EventPage,
    f"GET {JOB}/reports": ReportPage,
    f"POST {JOB}/reports": ReportRecord,
    f"POST {JOB}/ending": EndingRecord,
    f"POST {JOB}/heartbeats": HeartbeatAnswer,
    f"GET {JOB}/contingencies": ContingencyPage,
    f"GET {JOB}/generations/{{generation}}/lease": LeaseRecord,
    "POST /v1/estimates": PlanEstimate,
    "POST /v1/whatif": Decision,
    f"GET {JOB}/overlay": Overlay,
    f"POST {JOB}/overlay/heartbeats": OverlayHeartbeatAnswer,
    f"GET {JOB}/overlay/heartbeats": OverlaySigns,
    f"GET {JOB}/overlay/log": OverlayLog,
}
NOUNS = [(Profile, samples.PROFILES), (Cluster, samples.CLUSTERS), (Plan, samples.plans()), (Event, samples.events())]


def example(operation: str) -> object:
    responses = json.loads(EXAMPLES.read_text())["operations"][operation]["responses"]
    return next(content for status, content in responses.items() if status in ("200", "201"))


def with_more(data):
    """The same as a later service would say it: every object has a field that nobody knows yet."""
    if isinstance(data, list):
        return [with_more(item) for item in data]
    return {**{name: with_more(item) for name, item in data.items()}, "added_later": 1} if isinstance(data, dict) else data


@pytest.mark.parametrize(("operation", "kind"), ANSWERS.items())
def test_an_answer_is_what_our_own_codec_makes_of_it(operation, kind):
    text = json.dumps(example(operation))
    assert repr(noun_of(kind, text)) == repr(codec.loads(kind, text))


@pytest.mark.parametrize(("kind", "strategy"), NOUNS, ids=[kind.__name__ for kind, _ in NOUNS])
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_every_noun_is_what_it_was(kind, strategy, data):
    noun = data.draw(strategy)
    assert repr(noun_of(kind, codec.dumps(noun))) == repr(codec.loads(kind, codec.dumps(noun)))


def test_what_a_later_service_adds_is_left_out():
    said = example(f"GET {JOB}/plan")
    assert noun_of(Answer, json.dumps(with_more(said))) == codec.decode(Answer, said)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (b"", "document"),
        (b"\xff\xfe", "document"),
        (b"[" * 200_000, "document"),
        ('{"reason": "\ud800"}', "generation"),
        (b"null", "must be an object"),
        (b'{"generation": 1, "status": "applied", "reason": 1}', "reason"),
        (b'{"generation": true, "status": "applied"}', "generation"),
        (b'{"generation": -1, "status": "applied"}', "generation"),
        (b'{"generation": 1e999, "status": "applied"}', "generation"),
    ],
)
def test_what_is_none_of_the_services_answers_is_refused_by_name(text, field):
    with pytest.raises(InvalidInputError, match=field):
        noun_of(Report, text)
