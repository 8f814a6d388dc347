"""Workers that are told in advance that they have to go hand their state over first; the run stays exact."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from types import SimpleNamespace

import pytest

from kintsugi.client import Client
from kintsugi.core.cluster import Cluster
from kintsugi.core.decision import Decision
from kintsugi.core.errors import KintsugiError, NotFoundError
from kintsugi.core.job import Ranges
from kintsugi.core.membership import Event, EventKind
from kintsugi.core.plan import IdleWorker
from kintsugi.runtime.control.agent import Agent
from kintsugi.runtime.control.attempt import Phase
from kintsugi.runtime.control.decisions import Decisions, JobRequest, LocalDecisions, ServiceDecisions
from kintsugi.runtime.control.farewell import Farewells
from kintsugi.runtime.control.fleet import Fleet
from kintsugi.runtime.control.roster import Roster
from kintsugi.runtime.faults import Fault, FaultPoint, fail_at
from kintsugi.runtime.options import WorkerOptions
from kintsugi.runtime.result import RunResult
from tests.runtime.jobs import tiny_gpt
from tests.runtime.runs import assert_same, gpt_request, run, run_slowly, survivors
from tests.services import service

pytestmark = pytest.mark.processes

NUM_STEPS = 24
TOLERANCE = 1e-9
"""AdamW divides rounding differences by tiny second moments, step by step."""


def with_spare(request: JobRequest) -> JobRequest:
    """One worker more than the plan uses."""
    num_workers = len(request.cluster.workers)
    assert request.plan is not None
    spares = (*request.plan.idle_workers, IdleWorker(worker=f"w{num_workers:02d}", reason="spare"))
    return replace(request, cluster=Cluster.uniform(num_workers + 1), plan=replace(request.plan, idle_workers=spares))


@cache
def reference(dp: int, pp: int) -> RunResult:
    return run(partial(tiny_gpt, num_steps=NUM_STEPS), gpt_request(dp, pp))


def left(agent: Agent) -> bool:
    """Whether somebody has handed over and gone, and the job trains again."""
    is_committed = bool(agent.recoveries) and agent.recoveries[-1].committed_at is not None
    return is_committed and all(worker not in agent.alive for worker in agent.recoveries[-1].left)


def nothing(_: Agent) -> None: ...


def test_the_only_holder_of_layers_hands_them_over(tmp_path):
    preempted = fail_at(1, "w01", "backward", "preempt")
    result = run_slowly(tmp_path / "gate", NUM_STEPS, with_spare(gpt_request(1, 3)), nothing, preempted, is_over=left)
    assert_same(result, reference(1, 3), TOLERANCE)
    assert [(recovery.lost, recovery.left) for recovery in result.recoveries] == [([], ["w01"])]
    assert "w01" not in survivors(result).workers
    assert "w01" in {transfer.source for transfer in result.decisions[-1].migration.transfers}
    assert all(counts == (1,) * 8 for counts in result.microbatches)


def test_a_worker_that_is_taken_away_before_its_turn_is_an_ordinary_loss(tmp_path):
    faults = (fail_at(1, "w01", "backward", "preempt"), Fault(worker="w01", at=FaultPoint.REGROUP, generation=1))
    result = run_slowly(
        tmp_path / "gate", NUM_STEPS, gpt_request(2, 2), nothing, *faults, is_over=lambda agent: "w01" not in agent.alive
    )
    assert_same(result, reference(2, 2), TOLERANCE)
    assert [(recovery.lost, recovery.left) for recovery in result.recoveries] == [(["w01"], ["w01"])]


def test_others_are_lost_while_one_leaves(tmp_path):
    faults = (fail_at(1, "w01", "backward", "preempt"), Fault(worker="w02", at=FaultPoint.REGROUP, generation=1))
    request = with_spare(gpt_request(2, 2))
    result = run_slowly(tmp_path / "gate", NUM_STEPS, request, nothing, *faults, is_over=lambda agent: "w02" not in agent.alive)
    assert_same(result, reference(2, 2), TOLERANCE)
    assert not {"w01", "w02"} & set(survivors(result).workers)


def test_a_worker_that_nobody_can_replace_stays(tmp_path):
    asked: list[bool] = []

    def ask_once(agent: Agent) -> None:
        if agent.losses and not asked:
            asked.append(True)
            agent.drain("w01")

    class Counting(LocalDecisions):
        def after(self, events):
            kinds.extend(event.kind for event in events)
            return super().after(events)

    kinds: list[EventKind] = []
    result = run_slowly(
        tmp_path / "gate", NUM_STEPS, in_pairs(gpt_request(1, 2)), ask_once, is_over=lambda _: bool(kinds), decisions=Counting()
    )
    assert not result.recoveries
    assert kinds == [EventKind.WORKER_DRAINING]


@dataclass
class Refused:
    """What no plan came of."""

    told: list[list[str | None]] = field(default_factory=list)

    def noted_by(self, source: Decisions) -> Decisions:
        """The same source, which notes it."""
        decide = source.after

        def after(events: Sequence[Event]) -> Decision:
            try:
                return decide(events)
            except KintsugiError:
                self.told.append([event.worker for event in events])
                raise

        source.after = after
        return source


def has_recovered(agent: Agent) -> bool:
    return bool(agent.recoveries) and agent.recoveries[-1].committed_at is not None


@pytest.mark.parametrize("when", ["before the loss", "during the recovery"])
def test_those_who_cannot_be_done_without_stay_through_the_loss_of_another(tmp_path, when):
    """Of four workers three are asked to leave, and one dies: the three go on."""

    def ask(agent: Agent) -> None:
        is_now = bool(agent.losses) if when == "before the loss" else agent.phase is Phase.QUIESCING and bool(agent.losses)
        if is_now and not asked:
            asked.extend(["w00", "w01", "w02"])
            for worker in asked:
                agent.drain(worker)
        if bool(refused.told if when == "before the loss" else agent.losses) and not struck:
            struck.append("w03")
            agent.handle("w03").strike()

    asked: list[str] = []
    struck: list[str] = []
    refused = Refused()
    source = refused.noted_by(LocalDecisions())
    request = in_pairs(gpt_request(2, 2))
    result = run_slowly(tmp_path / "gate", NUM_STEPS, request, ask, is_over=has_recovered, decisions=source)
    assert_same(result, reference(2, 2), TOLERANCE)
    assert set(refused.told[-1]) >= {"w00", "w01", "w02"}
    assert [(recovery.lost, recovery.left) for recovery in result.recoveries] == [(["w03"], [])]
    assert set(survivors(result).workers) == {"w00", "w01", "w02"}


def test_a_service_hears_that_they_stay(tmp_path):
    """It has heard that all but one leave, and forgets nothing: one dies, and another once the others are asked anew."""

    def ask(agent: Agent) -> None:
        if agent.losses and not asked:
            asked.extend(["w00", "w01", "w02", "w03", "w04"])
            for worker in asked:
                agent.drain(worker)
        is_asked_anew = agent.phase is Phase.TRAINING and len(refused.told) > (0, 2, 4)[len(struck)]
        if is_asked_anew and len(struck) == len(agent.recoveries) < 2:
            struck.append(("w05", "w04")[len(struck)])
            agent.handle(struck[-1]).strike()

    def is_over(agent: Agent) -> bool:
        return len(agent.recoveries) == 2 and has_recovered(agent)

    asked: list[str] = []
    struck: list[str] = []
    refused = Refused()
    with service(tmp_path / "kintsugi.sqlite3") as running, Client(running.url) as client:
        assert not client.jobs().jobs  # over a connection that stays
        source = refused.noted_by(ServiceDecisions(client))
        request = in_pairs(gpt_request(2, 3), min_dp=2)
        result = run_slowly(tmp_path / "gate", NUM_STEPS, request, ask, is_over=is_over, decisions=source)
        told = [(record.event.kind, record.event.worker) for record in client.events(request.name).events]
    assert_same(result, reference(2, 3), TOLERANCE)
    assert [(recovery.lost, recovery.left) for recovery in result.recoveries] == [(["w05"], []), (["w04"], [])]
    assert set(survivors(result).workers) == {"w00", "w01", "w02", "w03"}
    assert [worker for kind, worker in told if kind is EventKind.WORKER_STAYING] == [*asked, *asked[:4]]


def test_who_is_asked_to_leave_before_the_first_step_leaves_the_job_that_begins_anew(tmp_path):
    """The only holder of half of the layers dies when nothing was trained yet."""

    def ask(agent: Agent) -> None:
        if agent.phase is Phase.PREPARING and not asked:
            asked.append("w00")
            agent.drain("w00")
            agent.handle("w01").strike()

    asked: list[str] = []
    request = with_spare(with_spare(gpt_request(1, 2)))
    result = run_slowly(tmp_path / "gate", NUM_STEPS, request, ask, is_over=left)
    assert_same(result, reference(1, 2), TOLERANCE)
    assert result.recoveries[0].lost == ["w01"]
    assert not {"w00", "w01"} & set(survivors(result).workers)


def in_pairs(request: JobRequest, *, min_dp: int = 1) -> JobRequest:
    """No pipeline of one worker is wanted, and so many pipelines."""
    return replace(request, settings=replace(request.settings, ranges=Ranges(min_dp=min_dp, min_pp=2)))


@dataclass(eq=False)
class Asked:
    """A process that was asked to leave."""

    worker: str
    is_leaving: bool = True
    told: list[object] = field(default_factory=list)

    def send(self, message: object) -> None:
        self.told.append(message)


def test_who_was_lost_before_its_turn_leaves_no_more():
    """Nor does another process of its name, with whatever plan comes next."""
    fleet = Fleet(tiny_gpt, WorkerOptions())
    fleet.handles = {worker: Asked(worker) for worker in ("w03", "w01", "w02", "w00")}
    farewells = Farewells(fleet, Roster(gpt_request(2, 2)), SimpleNamespace(submit=lambda _: None))
    farewells.announce(is_training=True)
    assert farewells.leaving() == ["w03", "w01", "w02", "w00"]
    lost = [fleet.handles.pop("w01"), fleet.handles.pop("w02")]
    fleet.handles["w02"] = Asked("w02", is_leaving=False)
    assert farewells.leaving() == ["w03", "w00"]
    farewells.release(busy=["w00"])
    assert farewells.leaving() == ["w00"]
    assert [bool(handle.told) for handle in (*fleet.handles.values(), *lost)] == [True, False, False, False, False]


def test_who_had_to_be_kept_is_asked_for_again_while_the_job_trains():
    submitted = []
    fleet = Fleet(tiny_gpt, WorkerOptions())
    fleet.handles = {worker: Asked(worker) for worker in ("w00", "w01")}
    farewells = Farewells(fleet, Roster(gpt_request(1, 2)), SimpleNamespace(submit=submitted.append))
    farewells.announce(is_training=False)
    assert farewells.keep() == ["w00", "w01"]
    assert farewells.leaving() == farewells.keep() == []
    farewells.announce(is_training=False)
    farewells.announce(is_training=True)
    assert [[event.worker for event in events] for events in submitted] == [["w00", "w01"], ["w00", "w01"]]
    assert farewells.leaving() == ["w00", "w01"]


def test_only_workers_of_the_job_leave(tmp_path):
    def ask(agent: Agent) -> None:
        with pytest.raises(NotFoundError, match="does not take part"):
            agent.drain("w09")

    result = run_slowly(tmp_path / "gate", 2, gpt_request(1, 2), ask, is_over=lambda _: True)
    assert not result.recoveries
