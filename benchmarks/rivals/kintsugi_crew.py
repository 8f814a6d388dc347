"""The same job under Kintsugi: three workers, one of which is killed and comes back, again and again."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from benchmarks.rivals.model import BATCH, NUM_LAYERS, Square, optimizer, width_for
from kintsugi.core.job import Ranges
from kintsugi.runtime.control.agent import Agent
from kintsugi.runtime.control.attempt import Phase
from kintsugi.runtime.layer import Layer
from kintsugi.runtime.measuring.profiler import profile_job
from kintsugi.runtime.models import Activations, Batch, NamedParameters, TrainingJob
from kintsugi.runtime.train import train

NUM_REPLICAS = 3
NUM_STEPS = 100_000
"""More than are ever trained: the run is ended once all is measured."""
RESTING_STEPS = 2


@dataclass
class Values:
    """Samples with one field, `values` of [width], that depend on their index alone."""

    width: int

    def __len__(self) -> int:
        return NUM_REPLICAS * BATCH

    def __getitem__(self, index: int) -> Mapping[str, Tensor]:
        return {"values": torch.randn(self.width, generator=torch.Generator().manual_seed(index))}


def mean_square(outputs: Activations, _: Batch) -> Tensor:
    """Of the last layer's output."""
    return outputs[0].square().mean()


def momentum(parameters: NamedParameters) -> torch.optim.Optimizer:
    """Over a worker's own parameters."""
    return optimizer([parameter for _, parameter in parameters])


def square_job(state_bytes: int) -> TrainingJob:
    """As many micro-batches as replicas, each as large as one of torchft's."""
    width = width_for(state_bytes)
    build = partial(Square, width)
    layers = [Layer(name=f"layer{n}", build=build, inputs=() if n else ("values",)) for n in range(NUM_LAYERS)]
    return TrainingJob(
        layers=layers,
        optimizer=momentum,
        loss=mean_square,
        dataset=Values(width),
        microbatch_size=BATCH,
        num_microbatches=NUM_REPLICAS,
        num_steps=NUM_STEPS,
    )


class EnoughError(Exception):
    """All is measured."""


@dataclass(slots=True)
class Striker:
    """An observer that kills a worker, waits for a step, has it come back, waits for a step of all, and so on."""

    num_kills: int
    deadline: float
    """On the monotonic clock; no further kill after it."""
    tell: Callable[[float, float], None]
    """Called with both times in seconds, after each kill."""
    victim: str = ""
    killed_at: float = 0.0
    invited_at: float = 0.0
    kill_seconds: float = 0.0
    rests_until: int = RESTING_STEPS
    done: int = field(default=0)

    def __call__(self, agent: Agent) -> None:
        """Observe."""
        step = max(agent.losses, default=-1)
        latest = agent.recoveries[-1] if agent.recoveries else None
        if self.invited_at:
            is_full = len(agent.decision.plan.workers) == NUM_REPLICAS and latest is not None and latest.joined
            if is_full and latest is not None and latest.committed_at is not None:
                self.tell(self.kill_seconds, latest.committed_at - self.invited_at)
                self.done, self.invited_at, self.rests_until = self.done + 1, 0.0, step + RESTING_STEPS
                if self.done == self.num_kills or time.monotonic() > self.deadline:
                    raise EnoughError
        elif self.killed_at:
            if latest is not None and latest.lost == [self.victim] and latest.committed_at is not None:
                self.kill_seconds = latest.committed_at - self.killed_at
                self.killed_at, self.invited_at = 0.0, time.monotonic()
                agent.invite(self.victim)
        elif step >= self.rests_until and agent.phase is Phase.TRAINING:
            self.victim = agent.decision.plan.workers[self.done % NUM_REPLICAS]
            self.killed_at = time.monotonic()
            agent.handle(self.victim).strike()


def measure(state_bytes: int, num_kills: int, seconds: float, service: str, tell: Callable[[float, float], None]) -> None:
    """Kill and restart `num_kills` times, no further one after `seconds`, with plans made by the service at the URL `service`."""
    make_job = partial(square_job, state_bytes)
    profile = profile_job(make_job, name="replicas", num_workers=NUM_REPLICAS)
    ranges = Ranges(min_dp=2, max_pp=1)
    striker = Striker(num_kills, time.monotonic() + seconds, tell)
    name = f"replicas-{state_bytes}"
    try:
        train(
            make_job,
            workers=NUM_REPLICAS,
            dp=NUM_REPLICAS,
            pp=1,
            ranges=ranges,
            name=name,
            profile=profile,
            service=service,
            observer=striker,
        )
    except EnoughError:
        return
