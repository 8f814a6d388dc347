"""Workers that are told in advance that they have to go hand their state over first; the run stays exact."""

from dataclasses import dataclass, field, replace
from functools import cache, partial
from types import SimpleNamespace

import pytest

from kintsugi.core.cluster import Cluster
from kintsugi.core.errors import KintsugiError, NotFoundError
from kintsugi.core.job import Ranges
from kintsugi.core.membership import EventKind
from kintsugi.core.plan import IdleWorker
from kintsugi.runtime.control.agent import Agent
from kintsugi.runtime.control.attempt import Phase
from kintsugi.runtime.control.decisions import JobRequest, LocalDecisions
from kintsugi.runtime.control.farewell import Farewells
from kintsugi.runtime.control.fleet import Fleet
from kintsugi.runtime.control.roster import Roster
from kintsugi.runtime.faults import Fault, FaultPoint, fail_at
from kintsugi.runtime.options import WorkerOptions
from kintsugi.runtime.result import RunResult
from tests.runtime.jobs import tiny_gpt
from tests.runtime.runs import assert_same, gpt_request, run, run_slowly, survivors

pytestmark = pytest.mark.processes

NUM_STEPS = 24
TOLERANCE = 1e-9
"""AdamW divides rounding differences by tiny second moments, step by step."""


def with_spare(request: JobRequest) -> JobRequest:
    """One worker more than the plan uses."""
    num_workers = len(request.cluster.workers)
    assert request.plan is not None
    spare = IdleWorker(worker=f"w{num_workers:02d}", reason="spare")
    return replace(request, cluster=Cluster.uniform(num_workers + 1), plan=replace(request.plan, idle_workers=(spare,)))


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


@pytest.mark.parametrize("when", ["before the loss", "during the recovery"])
def test_those_who_cannot_be_done_without_stay_through_the_loss_of_another(tmp_path, when):
    """Of four workers three are asked to leave, and one dies: the three go on."""

    def ask(agent: Agent) -> None:
        is_now = bool(agent.losses) if when == "before the loss" else agent.phase is Phase.QUIESCING and bool(agent.losses)
        if is_now and not asked:
            asked.extend(["w00", "w01", "w02"])
            for worker in asked:
                agent.drain(worker)
        if bool(refused if when == "before the loss" else agent.losses) and not struck:
            struck.append("w03")
            agent.handle("w03").strike()

    class Refusing(LocalDecisions):
        def after(self, events):
            try:
                return super().after(events)
            except KintsugiError:
                refused.append([event.worker for event in events])
                raise

    asked: list[str] = []
    struck: list[str] = []
    refused: list[list[str]] = []
    result = run_slowly(
        tmp_path / "gate",
        NUM_STEPS,
        in_pairs(gpt_request(2, 2)),
        ask,
        is_over=lambda agent: bool(agent.recoveries) and agent.recoveries[-1].committed_at is not None,
        decisions=Refusing(),
    )
    assert_same(result, reference(2, 2), TOLERANCE)
    assert set(refused[-1]) >= {"w00", "w01", "w02"}
    assert [(recovery.lost, recovery.left) for recovery in result.recoveries] == [(["w03"], [])]
    assert set(survivors(result).workers) == {"w00", "w01", "w02"}


def in_pairs(request: JobRequest) -> JobRequest:
    """No pipeline of one worker is wanted."""
    return replace(request, settings=replace(request.settings, ranges=Ranges(min_pp=2)))


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
    farewells.keep(["w01"])
    assert farewells.leaving() == ["w00"]
    farewells.announce(is_training=False)
    farewells.announce(is_training=True)
    assert [[event.worker for event in events] for events in submitted] == [["w00", "w01"], ["w01"]]
    assert farewells.leaving() == ["w00", "w01"]


def test_only_workers_of_the_job_leave(tmp_path):
    def ask(agent: Agent) -> None:
        with pytest.raises(NotFoundError, match="does not take part"):
            agent.drain("w09")

    result = run_slowly(tmp_path / "gate", 2, gpt_request(1, 2), ask, is_over=lambda _: True)
    assert not result.recoveries
