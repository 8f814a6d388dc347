"""A job whose state was lost asks the service, over HTTP, and restarts from its checkpoint; so does its next life."""

from functools import partial

import pytest

from kintsugi.client import Client
from kintsugi.core.ending import Outcome
from kintsugi.core.plan import Policy
from kintsugi.runtime.checkpoints.recording import CheckpointOptions, Strategy
from kintsugi.runtime.faults import fail_at
from kintsugi.runtime.records.audit import audit
from kintsugi.runtime.result import RunResult
from kintsugi.runtime.train import train
from tests.runtime.jobs import profile_for, tiny_gpt
from tests.runtime.runs import assert_same, gpt_request, leaves_nothing, run
from tests.services import service

pytestmark = pytest.mark.processes

BLOCKING = CheckpointOptions(every_steps=2, strategy=Strategy.BLOCKING)


def test_state_is_lost_under_a_service_and_comes_back_from_a_checkpoint(tmp_path):
    short, whole = partial(tiny_gpt, num_steps=4), partial(tiny_gpt, num_steps=5)

    def life(job, *faults) -> RunResult:
        return train(
            job,
            workers=2,
            dp=1,
            pp=2,
            name="struck",
            profile=profile_for(job()),
            service=running.url,
            run=tmp_path / "run",
            checkpoints=BLOCKING,
            faults=faults,
        )

    with leaves_nothing(), service(tmp_path / "kintsugi.sqlite3") as running:
        struck = life(short, fail_at(3, "w01", "backward"))
        again = life(whole)
        with Client(running.url) as client:
            first, following = client.job("struck"), client.job("struck.life2").summary
    reference = run(whole, gpt_request(1, 2))
    assert [decision.policy for decision in struck.decisions[1:]] == [Policy.CHECKPOINT_RESTART]
    assert (first.ended.ending.outcome, following.outcome) == (Outcome.COMPLETED, Outcome.COMPLETED)
    assert first.decision.plan == struck.decisions[-1].plan
    assert following.generation == 0
    assert struck.losses == pytest.approx(reference.losses[:4], rel=1e-12, abs=0)
    assert_same(again, reference)
    report = audit(tmp_path / "run")
    assert report.is_exact
    assert report.is_complete
    assert [(undone.first, undone.last) for undone in report.undone] == [(2, 2)]
