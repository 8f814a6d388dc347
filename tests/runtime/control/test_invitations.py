"""Who is invited has a name; nothing starts for one that has none."""

import pytest

from kintsugi.core.errors import InvalidInputError
from kintsugi.runtime.control.agent import Agent
from kintsugi.runtime.control.decisions import LocalDecisions
from kintsugi.runtime.control.roster import Roster
from kintsugi.runtime.options import AgentOptions, Governance
from tests.runtime.jobs import tiny_gpt
from tests.runtime.runs import gpt_request


@pytest.mark.parametrize("governance", Governance)
@pytest.mark.parametrize(
    ("worker", "host", "field"),
    [("", None, "worker"), ("a\tb", None, "worker"), ("w" * 201, None, "worker"), (5, None, "worker"), ("w02", "", "host")],
)
def test_what_is_no_name_is_refused_at_once(governance, worker, host, field):
    options = AgentOptions(governance=governance)
    with Agent(tiny_gpt, gpt_request(2, 1), LocalDecisions(), options=options) as agent:
        with pytest.raises(InvalidInputError, match="must be a ") as refusal:
            agent.invite(worker, host=host)
        assert refusal.value.field == field
        assert agent.arriving == ()


def test_the_longest_name_can_be_told_of():
    roster = Roster(gpt_request(2, 1))
    events = [roster.joined("w" * 200), roster.joined("w" * 199), roster.failed("w" * 200)]
    assert len({event.id for event in events}) == 3
