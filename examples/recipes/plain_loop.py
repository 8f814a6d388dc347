"""A plain torch loop that follows the plans of a Kintsugi service: six calls of its client, and no runtime of Kintsugi's.

    kintsugi serve &
    python examples/recipes/plain_loop.py --service http://127.0.0.1:8000 --steps 200

The loop stands for a trainer with parallelism of its own: before each step it asks whether there is a newer plan, rearranges
itself (here: how many samples each pipeline gets), and answers `applied`, or `rejected` with a reason. Whoever sees a failure
posts the event: the trainer itself, Slurm's epilog, a watcher of pods.
"""

import argparse
import sys
import time
from collections import Counter
from pathlib import Path
from uuid import uuid4

import torch
from torch import nn

from kintsugi.client import Client
from kintsugi.core import codec
from kintsugi.core.cluster import Cluster
from kintsugi.core.ending import Outcome
from kintsugi.core.errors import KintsugiError
from kintsugi.core.job import JobSettings
from kintsugi.core.messages import Measurement, Report, ReportStatus
from kintsugi.core.plan import Plan
from kintsugi.core.profile import Profile

NUM_MICROBATCHES, MICROBATCH_SIZE = 12, 4
MEASURED_STEPS = 20
PROFILE = Path(__file__).parents[2] / "profiles" / "models" / "gpt2-124m.a100-80g.json"


def shares(plan: Plan) -> dict[str, int]:
    """Micro-batches that each first-stage worker computes, those of dead slots included: what this loop carries out."""
    taken_over = {route.microbatch: route.worker for route in plan.routes if route.stage == 0}
    homes = [pipeline.stages[0].worker for pipeline in plan.pipelines for _ in range(pipeline.num_microbatches)]
    return dict(Counter(str(taken_over.get(number, home)) for number, home in enumerate(homes)))


def step(model: nn.Module, optimizer: torch.optim.Optimizer, microbatches: dict[str, int]) -> float:
    """One update over all micro-batches, worker by worker; its loss."""
    optimizer.zero_grad()
    total = 0.0
    for number in microbatches.values():
        for _ in range(number):
            inputs = torch.randn(MICROBATCH_SIZE, 8)
            loss = (model(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean() / NUM_MICROBATCHES
            loss.backward()
            total += loss.item()
    optimizer.step()
    return total


def train(client: Client, job: str, profile: Profile, cluster: Cluster, steps: int) -> None:
    """Train for `steps` steps, under whatever plan is the latest."""
    client.create_job(job=job, profile=profile, cluster=cluster, settings=JobSettings(num_microbatches=NUM_MICROBATCHES))
    answer = client.plan(job)
    generation, microbatches = answer.generation, shares(answer.decision.plan)
    client.report(job, Report(generation=generation, status=ReportStatus.APPLIED))
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    started = time.perf_counter()
    for number in range(steps):
        newer = client.plan_after(job, generation)
        if newer is not None:
            generation, microbatches = newer.generation, shares(newer.decision.plan)
            client.report(job, Report(generation=generation, status=ReportStatus.APPLIED))
            print(f"step {number}: generation {generation}, {newer.decision.policy.value}, shares {microbatches}", flush=True)
        loss = step(model, optimizer, microbatches)
        if number % MEASURED_STEPS == MEASURED_STEPS - 1:
            seconds = (time.perf_counter() - started) / MEASURED_STEPS
            measured = Measurement(step=number, iteration_seconds=seconds)
            client.report(job, Report(generation=generation, status=ReportStatus.MEASURED, measured=measured))
            started = time.perf_counter()
            print(f"step {number}: loss {loss:.4f}", flush=True)
    client.end(job, Outcome.COMPLETED, by="plain_loop")


def main() -> None:
    """Create a job of six workers and train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--service", required=True, help="URL of Kintsugi; its token comes from KINTSUGI_TOKEN")
    parser.add_argument("--profile", default=str(PROFILE))
    parser.add_argument("--job", default=f"plain-loop-{uuid4().hex[:8]}", help="its name at the service; a new one by default")
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    try:
        with Client(options.service) as client:
            train(client, options.job, codec.load(Profile, options.profile), Cluster.uniform(6, workers_per_host=2), options.steps)
    except KintsugiError as error:
        sys.exit(f"plain_loop: {error}")


if __name__ == "__main__":
    main()
