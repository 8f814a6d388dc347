"""What the agent makes of losses at every moment, word by word; its workers do at once what they are told."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from kintsugi.core.cluster import Cluster
from kintsugi.core.decision import Decision
from kintsugi.core.errors import InfeasibleError, ReconfigurationError, StateLostError, UnavailableError
from kintsugi.core.membership import Event, EventKind
from kintsugi.core.plan import IdleWorker
from kintsugi.runtime.checkpoints.recording import CheckpointOptions, RunOptions
from kintsugi.runtime.checkpoints.snapshots import worker_part, write_part
from kintsugi.runtime.control.attempt import Phase
from kintsugi.runtime.control.decisions import JobRequest, LocalDecisions
from kintsugi.runtime.messages import CallOff, CheckpointEvery, Collect, Go, LinkBroken, PartWritten, Prepare, StepDone, Stop
from kintsugi.runtime.options import AgentOptions, WorkerOptions
from tests.runtime.control.crews import Ensemble, Seat
from tests.runtime.jobs import tiny_gpt
from tests.runtime.runs import gpt_request

REQUEST = gpt_request(2, 2)
EVERYBODY = {"w00", "w01", "w02", "w03"}


class Noting(LocalDecisions):
    """Notes what it is asked and told; answers the first questions with what is in `errors`, as long as there are any."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.asked: list[list[tuple[EventKind, str | None]]] = []
        self.told: list[int] = []
        self.planned_from: list[int] = []
        self.begun: list[str] = []

    def start(self, request: JobRequest) -> Decision:
        self.begun.append(request.name)
        return super().start(request)

    def after(self, events: Sequence[Event]) -> Decision:
        self.asked.append([(event.kind, event.worker) for event in events])
        self.planned_from.append(self._applied.generation)
        if self.errors:
            raise self.errors.pop(0)
        return super().after(events)

    def applied(self, generation: int) -> None:
        self.told.append(generation)
        super().applied(generation)


def with_spare(request: JobRequest) -> JobRequest:
    """One worker more than the plan uses."""
    plan = replace(request.plan, idle_workers=(IdleWorker(worker="w04", reason="spare"),))
    return replace(request, cluster=Cluster.uniform(5), plan=plan)


def failed(*workers: str) -> list[tuple[EventKind, str | None]]:
    return [(EventKind.WORKER_FAILED, worker) for worker in workers]


def losing_while_another_gets_ready(ensemble: Ensemble) -> Seat:
    """w01 is lost, and all get ready for the plan without it but w03, whose seat this gives."""
    last = ensemble.crew.handles["w03"]
    last.is_willing = False
    ensemble.lose("w01")
    ensemble.until(lambda: ensemble.conductor.phase is Phase.PREPARING)
    return last


def test_who_leaves_is_asked_about_once_more_where_whoever_decides_was_away_for_longer_than_is_waited():
    """Else it would stay until something else happens, which may be never."""
    source = Noting(*(UnavailableError("gone", field="url") for _ in range(2)))
    with Ensemble(REQUEST, source) as ensemble:
        ensemble.conductor.drain("w01")
        ensemble.until(lambda: "w01" not in ensemble.conductor.decision.plan.workers and ensemble.trains())
    assert source.asked == [[(EventKind.WORKER_DRAINING, "w01")]] * 3


def test_survivors_leave_the_step_and_go_on_under_the_next_plan():
    source = Noting()
    with Ensemble(REQUEST, source) as ensemble:
        seats = dict(ensemble.crew.handles)
        ensemble.lose("w01")
        ensemble.until(lambda: ensemble.generation == 1 and ensemble.trains())
        assert ensemble.here == EVERYBODY - {"w01"}
        assert seats["w01"].is_fenced
        for worker in ensemble.here:
            assert [seats[worker].heard(kind) for kind in (CallOff, Prepare, Go)] == [2, 2, 2]
        [recovery] = ensemble.conductor.recoveries.all
        assert (recovery.lost, recovery.generation) == (["w01"], 1)
        assert None not in (recovery.quiesced_at, recovery.planned_at, recovery.regrouped_at, recovery.resumed_at)
    assert source.asked == [failed("w01")]
    assert source.told == [0, 1]


def test_losses_of_one_moment_are_one_question():
    source = Noting()
    with Ensemble(gpt_request(4, 1), source) as ensemble:
        ensemble.lose("w01", "w02")
        ensemble.until(lambda: ensemble.generation == 1 and ensemble.trains())
    assert source.asked == [failed("w01", "w02")]


def test_a_loss_while_the_others_get_ready_begins_anew():
    source = Noting()
    with Ensemble(gpt_request(4, 1), source) as ensemble:
        losing_while_another_gets_ready(ensemble)
        before = ensemble.crew.handles["w00"].heard(CallOff)
        ensemble.lose("w03")
        ensemble.until(lambda: ensemble.generation == 2 and ensemble.trains())
        assert ensemble.crew.handles["w00"].heard(CallOff) == before + 1
        assert [recovery.lost for recovery in ensemble.conductor.recoveries.all] == [["w01", "w03"]]
    assert source.asked == [failed("w01"), failed("w03")]
    assert source.told == [0, 2]


def test_who_is_asked_to_leave_while_all_get_ready_is_planned_for_from_the_plan_they_get_ready_for():
    source = Noting()
    with Ensemble(gpt_request(4, 1), source) as ensemble:
        last = losing_while_another_gets_ready(ensemble)
        ensemble.conductor.drain("w02")
        ensemble.conductor.poll()
        last.get_ready()
        ensemble.until(lambda: ensemble.generation == 2 and ensemble.trains())
        assert "w02" not in ensemble.conductor.decision.plan.workers
    assert source.asked == [failed("w01"), [(EventKind.WORKER_DRAINING, "w02")]]
    assert source.planned_from == [0, 1]


def test_a_checkpoint_that_is_asked_for_while_all_get_ready_is_told_of_once_they_are(tmp_path):
    """The plan that they get ready for has the older interval, and would overwrite a newer one."""
    run = RunOptions.of(tiny_gpt(), tmp_path, mtbf_seconds=1_000.0, checkpoints=CheckpointOptions(every_steps=1_000))
    with Ensemble(gpt_request(4, 1), Noting(), AgentOptions(worker=WorkerOptions(run=run))) as ensemble:
        last = losing_while_another_gets_ready(ensemble)
        ensemble.conductor.save()
        ensemble.conductor.poll()
        last.get_ready()
        ensemble.until(lambda: last.heard(CheckpointEvery))
        assert [type(message) for message in last.told][-3:] == [Prepare, Go, CheckpointEvery]
        ensemble.conductor.close()


def test_an_idle_worker_that_is_lost_disturbs_nobody():
    source = Noting()
    with Ensemble(with_spare(REQUEST), source) as ensemble:
        calls = ensemble.crew.handles["w00"].heard(CallOff)
        ensemble.lose("w04")
        ensemble.until(lambda: ensemble.generation == 1 and ensemble.trains())
        assert ensemble.crew.handles["w00"].heard(CallOff) == calls
        assert ensemble.conductor.recoveries.all == []
    assert source.told == [0, 1]


def test_who_comes_is_planned_for_beside_the_training_and_only_then_called_in():
    source = Noting()
    with Ensemble(REQUEST, source) as ensemble:
        for worker in ("w04", "w05"):
            ensemble.conductor.invite(worker, None)
        ensemble.until(lambda: ensemble.generation == 1 and ensemble.trains())
        assert set(ensemble.conductor.decision.plan.workers) == EVERYBODY | {"w04", "w05"}
        [recovery] = ensemble.conductor.recoveries.all
        assert set(recovery.joined) == {"w04", "w05"}
        assert ensemble.crew.handles["w04"].heard(Prepare) == 1
    assert source.asked == [[(EventKind.WORKER_JOINED, "w04"), (EventKind.WORKER_JOINED, "w05")]]


def test_a_plan_for_workers_that_are_not_here_is_asked_for_again_without_them():
    class Behind(Noting):
        def after(self, events: Sequence[Event]) -> Decision:
            decision = super().after(events)
            if len(self.asked) > 1:
                return decision
            return replace(decision, plan=replace(REQUEST.plan, generation=decision.plan.generation))

    source = Behind()
    with Ensemble(REQUEST, source) as ensemble:
        ensemble.lose("w01")
        ensemble.until(lambda: ensemble.generation == 2 and ensemble.trains())
        assert "w01" not in ensemble.conductor.decision.plan.workers
    assert source.asked == [failed("w01"), failed("w01")]


def test_attempts_with_the_same_workers_come_to_an_end():
    options = AgentOptions(link_grace_seconds=0.0, probe_timeout_seconds=1e-9, max_idle_attempts=3)

    def breaks(ensemble: Ensemble) -> bool:
        """In every attempt a message fails before a step is done."""
        for seat in ensemble.crew.handles.values():
            seat.answers = type(seat.answers)(answer for answer in seat.answers if not isinstance(answer, StepDone))
        number = ensemble.conductor._attempt.number
        if ensemble.conductor.phase is Phase.TRAINING:
            ensemble.crew.handles["w00"].answers.append(LinkBroken(number, "refused"))
        return False

    with Ensemble(REQUEST, LocalDecisions(), options) as ensemble:
        attempts = ensemble.crew.handles["w01"].heard(CallOff)
        with pytest.raises(ReconfigurationError, match="gave up after 3 attempts without a loss between them: w00: refused"):
            ensemble.until(lambda: breaks(ensemble))
        assert ensemble.crew.handles["w01"].heard(CallOff) == attempts + 2


def test_a_job_of_which_nothing_was_trained_begins_anew_where_state_is_lost():
    source = Noting(StateLostError("gone", layers=(0,)))
    with Ensemble(REQUEST, source) as ensemble:
        ensemble.conductor.progress.losses.clear()
        for seat in ensemble.crew.handles.values():
            seat.status = replace(seat.status, step=0)
        ensemble.lose("w01")
        ensemble.until(lambda: len(source.begun) == 2 and ensemble.trains())
        assert "w01" not in ensemble.conductor.decision.plan.workers
        prepared = [message for message in ensemble.crew.handles["w00"].told if isinstance(message, Prepare)]
        assert prepared[-1].is_initial
    assert source.begun == ["job", "job.restart1"]


def test_a_job_that_was_trained_ends_where_state_is_lost():
    source = Noting(StateLostError("gone", layers=(0,)))
    with Ensemble(REQUEST, source) as ensemble:
        ensemble.lose("w01")
        with pytest.raises(StateLostError):
            ensemble.until(lambda: False)
    assert source.begun == ["job"]


def test_who_joined_is_let_go_where_there_is_no_plan_with_it_and_the_others_go_on():
    source = Noting(InfeasibleError("no room"), InfeasibleError("no room"))
    with Ensemble(REQUEST, source) as ensemble:
        ensemble.conductor.invite("w04", None)
        ensemble.until(lambda: len(source.asked) == 1 and ensemble.trains())
        assert "w04" in ensemble.here
        assert ensemble.generation == 0
        ensemble.lose("w01")
        ensemble.until(lambda: ensemble.generation > 0 and ensemble.trains())
        assert ensemble.here == EVERYBODY - {"w01"}
    joined = (EventKind.WORKER_JOINED, "w04")
    assert source.asked == [[joined], [joined, *failed("w01")], [joined, *failed("w01", "w04")]]


def test_what_was_trained_is_collected_once_all_are_through_and_who_told_is_not_missed():
    with Ensemble(REQUEST, LocalDecisions()) as ensemble:
        seats = dict(ensemble.crew.handles)
        seats["w03"].is_willing = False
        for seat in seats.values():
            assert ensemble.conductor.phase is Phase.TRAINING
            seat.finish()
            ensemble.conductor.poll()
        ensemble.until(lambda: ensemble.conductor.phase is Phase.COLLECTING)
        asked = [message for seat in seats.values() for message in seat.told if isinstance(message, Collect)]
        assert sorted(layer for message in asked for layer in message.layers) == list(range(REQUEST.plan.num_layers))
        ensemble.until(lambda: len(ensemble.conductor._attempt.collected) == 3)
        ensemble.lose("w00")
        ensemble.until(lambda: "w00" not in ensemble.here)
        assert ensemble.conductor.phase is Phase.COLLECTING
        assert not ensemble.conductor.is_done()
        ensemble.lose("w03")
        ensemble.until(lambda: ensemble.conductor.phase is Phase.TRAINING)
        assert ensemble.here == {"w01", "w02"}


def test_a_job_that_is_concluded_has_no_step_left():
    with Ensemble(REQUEST, LocalDecisions()) as ensemble:
        ensemble.conductor.conclude()
        calls = ensemble.crew.handles["w00"].heard(CallOff)
        ensemble.conductor.conclude()
        assert ensemble.crew.handles["w00"].heard(CallOff) == calls, "once is enough"
        ensemble.until(ensemble.trains)
        prepared = [message for message in ensemble.crew.handles["w00"].told if isinstance(message, Prepare)][-1]
        assert list(prepared.steps(100)) == []
        assert prepared.start_step == 1


@pytest.fixture
def recorded(tmp_path):
    """A job with a folder, in which one of its workers has written its part of a checkpoint."""
    checkpoints = CheckpointOptions(every_steps=1)
    run = RunOptions.of(tiny_gpt(), tmp_path, mtbf_seconds=1_000.0, checkpoints=checkpoints)
    with Ensemble(REQUEST, Noting(), AgentOptions(worker=WorkerOptions(run=run))) as ensemble:
        attempt = ensemble.conductor._attempt.number
        temporary = run.store.temporary(1, run.tag(attempt))
        files = write_part(temporary, worker_part("w00"), {"worker": "w00"})
        seconds = dict.fromkeys(("snapshot_seconds", "backpressure_seconds", "write_seconds", "stall_seconds"), 0.1)
        ensemble.crew.handles["w00"].answers.append(PartWritten(attempt=attempt, step=1, files=files, **seconds))
        yield ensemble, temporary
        ensemble.conductor.close()


def test_parts_of_a_checkpoint_that_the_others_left_before_they_copied_theirs_are_removed(recorded):
    ensemble, temporary = recorded
    ensemble.conductor.invite("w04", None)
    ensemble.until(lambda: ensemble.generation == 1 and ensemble.trains())
    ensemble.until(lambda: not temporary.exists())


def test_so_are_those_that_lack_what_a_worker_wrote_that_was_let_go(recorded):
    """It ends with the plan that it handed its state over for, whatever it is writing."""
    ensemble, temporary = recorded
    for worker in ("w01", "w02", "w03"):
        ensemble.crew.handles[worker].writing = ((ensemble.conductor._attempt.number, 1),)
    leaver = ensemble.crew.handles["w03"]
    ensemble.conductor.drain("w03")
    ensemble.until(lambda: leaver.heard(Stop) == 1)
    assert temporary.exists()
    ensemble.lose("w03")
    ensemble.until(lambda: leaver.is_fenced)
    ensemble.until(lambda: not temporary.exists())
