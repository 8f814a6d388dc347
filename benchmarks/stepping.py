"""Steps of the runtime's own executor in a process of a benchmark."""

import time
from collections.abc import Callable, Sequence

import torch

from benchmarks.members import Member
from estimator.message_windows import Windows, windows
from estimator.program import Action, Program
from kintsugi.core.plan import Plan
from kintsugi.runtime.models import TrainingJob, model_shape
from kintsugi.runtime.workers.executor import Executor
from kintsugi.runtime.workers.state import ModelState

Opening = Callable[[Sequence[Action], Sequence[int]], Windows]
"""From a worker's list and places to when its messages have buffers."""


def executor_of(member: Member, job: TrainingJob, plan: Plan, program: Program, opening: Opening = windows) -> Executor:
    """What runs a member's list, over the groups that it is connected to."""
    assert member.groups is not None
    actions = program.actions[member.name]
    return Executor(
        worker=member.name,
        job=job,
        shape=model_shape(job),
        state=ModelState.initial(job, plan.layers_of[member.name]),
        plan=plan,
        actions=actions,
        windows=opening(actions, program.places[member.name]),
        reductions=program.reductions,
        groups=member.groups,
        transport=member.groups.transport(torch.device(job.device), plan.workers),
        before_action=lambda *_: None,
    )


def step_seconds(executor: Executor, num_steps: int) -> list[float]:
    """What each of the first steps takes. Shape [steps]."""
    seconds = []
    for step in range(num_steps):
        began = time.monotonic()
        executor.run(step)
        seconds.append(time.monotonic() - began)
    return seconds
