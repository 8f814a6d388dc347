"""Executors of one pipeline, in threads: every receive is begun before its message, and buffers are let go of in time."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
import torch

from estimator.message_windows import most_held, windows
from estimator.program import compile_program
from kintsugi.core.cluster import Cluster
from kintsugi.core.plan import Schedule
from kintsugi.runtime.emulation import EmulatedTimes, emulated_job
from kintsugi.runtime.models import model_shape
from kintsugi.runtime.workers.commit import CommitRecord
from kintsugi.runtime.workers.executor import Executor
from kintsugi.runtime.workers.numbering import Numbering
from kintsugi.runtime.workers.state import ModelState
from tests.builders import grid_plan
from tests.runtime.jobs import profile_for

PATIENCE_SECONDS = 240.0
NUM_STEPS = 2


class Crossroads:
    """Where the workers' messages and sums meet."""

    def __init__(self, num_workers: int) -> None:
        self.changed = threading.Condition()
        self.begun: set[tuple[str, str, int]] = set()
        self.with_step: set[tuple[str, str, int]] = set()
        """Receives that are begun with a step, which others may have begun earlier."""
        self.letters: dict[tuple[str, str, int], Letter] = {}
        self.held: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.failures: list[str] = []
        self.sums: list[torch.Tensor] = []
        self.meeting = threading.Barrier(num_workers, timeout=PATIENCE_SECONDS)

    def hold(self, worker: str) -> None:
        self.held[worker] += 1
        self.most[worker] = max(self.most[worker], self.held[worker])

    def require(self, holds: bool, failure: str) -> None:
        if not holds:
            self.failures.append(failure)


@dataclass
class Letter:
    """One message, at its sender's end."""

    sender: str
    tensor: torch.Tensor
    crossroads: Crossroads
    is_taken: bool = False

    def wait(self) -> None:
        with self.crossroads.changed:
            assert self.crossroads.changed.wait_for(lambda: self.is_taken, PATIENCE_SECONDS)
            self.crossroads.held[self.sender] -= 1

    def acknowledged(self) -> None:
        self.crossroads.require(self.is_taken, f"{self.sender} lets go of what nobody has taken")
        self.wait()


@dataclass
class Expected:
    """One message, at its receiver's end."""

    key: tuple[str, str, int]
    crossroads: Crossroads

    def wait(self) -> torch.Tensor:
        own = self.crossroads
        with own.changed:
            assert own.changed.wait_for(lambda: self.key in own.letters, PATIENCE_SECONDS), self.key
            letter = own.letters.pop(self.key)
            letter.is_taken = True
            own.begun.discard(self.key)
            own.held[self.key[1]] -= 1
            own.changed.notify_all()
            return letter.tensor


@dataclass
class Worker:
    """The transport and the groups of one."""

    name: str
    crossroads: Crossroads

    def send(self, tensor: torch.Tensor, peer: str, tag: int) -> Letter:
        key = self.name, peer, tag
        letter = Letter(self.name, tensor.detach().clone(), self.crossroads)
        with self.crossroads.changed:
            is_in_time = key in self.crossroads.begun | self.crossroads.with_step
            self.crossroads.require(is_in_time, f"{key} is sent before its receive was begun")
            self.crossroads.letters[key] = letter
            self.crossroads.hold(self.name)
            self.crossroads.changed.notify_all()
        return letter

    def receive(self, _: object, peer: str, tag: int) -> Expected:
        key = peer, self.name, tag
        with self.crossroads.changed:
            self.crossroads.begun.add(key)
            self.crossroads.hold(self.name)
        return Expected(key, self.crossroads)

    def settle(self) -> None:
        pass

    def all_reduce(self, tensor: torch.Tensor, _: object = None) -> None:
        self.crossroads.sums.append(tensor.clone())
        self.crossroads.meeting.wait()
        tensor.copy_(torch.stack(self.crossroads.sums).sum(dim=0))
        if self.crossroads.meeting.wait() == 0:
            self.crossroads.sums.clear()
        self.crossroads.meeting.wait()


def trained(depth: int, num_microbatches: int, schedule: Schedule) -> tuple[list[CommitRecord], Crossroads, dict[str, int]]:
    """What each step came to, what crossed, and how many messages should have had buffers at once, at most."""
    times = [EmulatedTimes.even(0.0)] * 4
    job = emulated_job(times, num_microbatches=num_microbatches, num_steps=NUM_STEPS, width=3)
    plan = grid_plan(4, [depth], [num_microbatches], schedule=schedule)
    program, numbering = compile_program(plan, profile_for(job), Cluster.uniform(depth)), Numbering(model_shape(job))
    crossroads, executors, most = Crossroads(depth), [], {}
    for worker in plan.workers:
        actions = program.actions[worker]
        own = windows(actions, program.places[worker])
        most[worker] = most_held(actions, own)
        crossroads.with_step |= {(action.peer, worker, numbering.tag(action.message, 0)) for action in own.at_once}
        end = Worker(worker, crossroads)
        executors.append(
            Executor(
                worker=worker,
                job=job,
                shape=model_shape(job),
                state=ModelState.initial(job, plan.layers_of[worker]),
                plan=plan,
                actions=actions,
                windows=own,
                reductions=program.reductions,
                groups=end,
                transport=end,
                before_action=lambda *_: None,
            )
        )
    with ThreadPoolExecutor(depth) as threads:
        runs = [threads.submit(lambda one=one: [one.run(step) for step in range(NUM_STEPS)]) for one in executors]
        records = [run.result(PATIENCE_SECONDS) for run in runs]
    assert all(record == records[0] for record in records)
    return records[0], crossroads, most


@pytest.mark.parametrize("schedule", [Schedule.ONE_F_ONE_B, Schedule.ZB_H1, Schedule.ZB_H2])
@pytest.mark.parametrize("depth", [2, 4])
def test_no_message_comes_before_its_receive_and_none_is_kept_for_long(depth, schedule):
    records, crossroads, most = trained(depth, 12, schedule)
    assert crossroads.failures == []
    assert crossroads.held.total() == 0
    assert crossroads.begun == set()
    assert all(0 < crossroads.most[worker] <= bound <= 4 * depth < 24 for worker, bound in most.items())
    alone, _, _ = trained(1, 12, Schedule.ONE_F_ONE_B)
    assert [record.loss for record in records] == pytest.approx([record.loss for record in alone], rel=1e-6)
