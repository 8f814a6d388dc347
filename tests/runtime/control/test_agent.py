"""The agent's part: what it sees, what it tells, and how long it waits."""

import signal
from contextlib import suppress
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path

import pytest

from kintsugi.core.cluster import Cluster, Worker
from kintsugi.core.decision import Decision
from kintsugi.core.ending import Outcome
from kintsugi.core.errors import ReconfigurationError
from kintsugi.core.plan import Policy
from kintsugi.runtime.control.agent import Agent
from kintsugi.runtime.control.attempt import Phase
from kintsugi.runtime.control.decisions import LocalDecisions
from kintsugi.runtime.faults import Fault, FaultPoint, fail_at
from kintsugi.runtime.options import AgentOptions, WorkerOptions
from kintsugi.runtime.train import train
from tests.patience import PATIENCE_SECONDS
from tests.runtime.jobs import NUM_STEPS, profile_for, tiny_gpt
from tests.runtime.runs import gpt_request, leaves_nothing, options_with, run, run_struck

pytestmark = pytest.mark.processes


class Recording(LocalDecisions):
    """The planner in this process, and what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, object]] = []

    def after(self, events) -> Decision:
        self.told.append(("lost", tuple((event.worker, event.generation) for event in events)))
        return super().after(events)

    def applied(self, generation: int) -> None:
        self.told.append(("applied", generation))
        super().applied(generation)

    def measured(self, generation, measured) -> None:
        self.told.append(("measured", (generation, tuple(measured.phase_seconds))))

    def ended(self, ending) -> None:
        self.told.append(("ended", ending.outcome))


def run_with(*arguments, **keywords):
    with leaves_nothing(), Agent(*arguments, **keywords) as agent:
        return agent.run()


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_struck_from_outside_is_noticed(signal_number, tmp_path):
    def strike(agent: Agent) -> None:
        agent.handle("w03").strike(signal_number)

    result = run_struck(tmp_path / "gate", NUM_STEPS, gpt_request(2, 2, Policy.DATA_REROUTING), strike)
    (timeline,) = result.recoveries
    assert timeline.lost == ["w03"]
    assert len(result.losses) == NUM_STEPS
    assert timeline.failed_at <= timeline.detected_at


def test_the_timeline_of_a_recovery_is_complete_and_in_order():
    result = run(tiny_gpt, gpt_request(2, 2, Policy.DYNAMIC_PARALLELISM), fail_at(1, "w02", "forward"))
    (timeline,) = result.recoveries
    phases = timeline.phase_seconds()
    assert list(phases) == ["detected", "planned", "quiesced", "regrouped", "transferred", "resumed", "first_step"]
    assert timeline.failed_at is not None
    for earlier, later in (
        ("detected", "planned"),
        ("detected", "quiesced"),
        ("planned", "regrouped"),
        ("quiesced", "regrouped"),
        ("regrouped", "transferred"),
        ("transferred", "resumed"),
        ("resumed", "first_step"),
    ):
        assert phases[earlier] <= phases[later]
    assert (timeline.generation, timeline.policy) == (1, "dynamic_parallelism")


def test_decisions_are_told_what_happened_in_order():
    decisions = Recording()
    faults = (fail_at(1, "w02", "forward"), Fault(worker="w01", at=FaultPoint.STEP, generation=1))
    request = gpt_request(4, 1, Policy.DYNAMIC_PARALLELISM)
    run_with(tiny_gpt, request, decisions, options=options_with(*faults))
    told = [entry for entry in decisions.told if entry[0] != "measured"]
    assert told == [
        ("applied", 0),
        ("lost", (("w02", 0),)),
        ("applied", 1),
        ("lost", (("w01", 1),)),
        ("applied", 2),
        ("ended", Outcome.COMPLETED),
    ]
    assert [entry[1][0] for entry in decisions.told if entry[0] == "measured"] == [2]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(RuntimeError("the observer's own"), Outcome.FAILED), (KeyboardInterrupt(), Outcome.CANCELLED), (None, Outcome.CANCELLED)],
)
def test_how_a_job_ended_that_did_not_come_to_its_last_step(error, outcome):
    decisions = Recording()

    def stop(agent: Agent) -> None:
        if agent.losses and error is not None:
            raise error

    agent = Agent(tiny_gpt, gpt_request(2, 1), decisions, observer=stop)
    with leaves_nothing(), suppress(RuntimeError, KeyboardInterrupt), agent:
        agent._conductor.start() if error is None else agent.run()
    assert decisions.told[-1] == ("ended", outcome)


def test_processes_are_called_as_their_workers():
    seen = {}

    def look(agent: Agent) -> None:
        if agent.losses and not seen:
            seen.update({worker: Path(f"/proc/{agent.handle(worker).pid}/comm").read_text().strip() for worker in agent.alive})

    cluster = Cluster(
        name="two",
        workers=(Worker(id="w00", host="a"), Worker(id="a-host-of-a-long-name.3", host="b"), Worker(id="работник-7", host="c")),
    )
    with leaves_nothing():
        train(tiny_gpt, workers=cluster, dp=1, pp=3, profile=profile_for(tiny_gpt()), observer=look)
    assert seen == {"w00": "kintsugi w00", "a-host-of-a-long-name.3": "f-a-long-name.3", "работник-7": "????????-7"}


def test_the_observer_sees_every_phase():
    seen = []

    def observe(agent: Agent) -> None:
        if not seen or seen[-1] is not agent.phase:
            seen.append(agent.phase)

    faults = (fail_at(2, "w01", "forward"),)
    request = gpt_request(2, 2, Policy.DATA_REROUTING)
    run_with(tiny_gpt, request, LocalDecisions(), options=options_with(*faults), observer=observe)
    once = [Phase.PREPARING, Phase.TRAINING]
    assert seen[seen[0] is Phase.STARTING :] == [*once, Phase.QUIESCING, *once, Phase.COLLECTING]


def test_a_loss_that_is_heard_of_together_with_the_end_of_a_recovery_begins_the_next():
    """The agent is away from when the first recovery is through until the next worker is dead."""

    def be_away(agent: Agent) -> None:
        if len(agent.recoveries) == 1 and agent.phase is Phase.TRAINING and "w01" in agent.alive:
            assert wait([agent.handle("w01").process.sentinel], PATIENCE_SECONDS)

    faults = options_with(fail_at(1, "w03"), fail_at(2, "w01"))
    request = gpt_request(4, 1, Policy.DATA_REROUTING)
    result = run_with(tiny_gpt, request, LocalDecisions(), options=faults, observer=be_away)
    assert [recovery.lost for recovery in result.recoveries] == [["w03"], ["w01"]]
    assert all(recovery.resumed_at <= recovery.committed_at for recovery in result.recoveries)


def test_workers_that_cannot_connect_are_given_up_after_a_few_attempts():
    """An address that no host has: every attempt fails without a loss."""
    options = AgentOptions(worker=WorkerOptions(address="192.0.2.1"), link_grace_seconds=0.1)
    with pytest.raises(ReconfigurationError, match="gave up after 3 attempts without a loss between them"):
        run_with(tiny_gpt, gpt_request(2, 1), LocalDecisions(), options=options)


def test_many_steps_and_many_losses():
    points = ("forward", "applied", "reduce", "commit", "step")
    faults = [fail_at(2 * n + 1, f"w{n:02d}", point) for n, point in enumerate(points)]
    result = run(partial(tiny_gpt, num_steps=12), gpt_request(8, 1, Policy.DATA_REROUTING), *faults)
    assert len(result.losses) == len(result.step_seconds) == 12
    assert [decision.plan.generation for decision in result.decisions] == list(range(6))
    assert result.decisions[-1].plan.workers == ("w05", "w06", "w07")
    assert result.has_equal_replicas
