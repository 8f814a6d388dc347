"""A torchrun script whose ranks share the work as Kintsugi plans it, on however many ranks torchrun finds.

    kintsugi serve &
    RUN=elastic-$(date +%s)
    torchrun --rdzv-backend kintsugi --rdzv-endpoint 127.0.0.1:8000 --rdzv-id $RUN --nnodes 1:8 --nproc-per-node 1 \\
        --max-restarts 5 examples/recipes/torchrun_ddp.py --service http://127.0.0.1:8000

An id is for one run. Other hosts may join with the same torchrun and the same id. When ranks are started again, on fewer or more
of them, rank 0 tells the service who is missing and who is back, and all ranks take their shares of the micro-batches from the
plan that answers. Rank n is worker n; the job is torchrun's `--rdzv-id`, and ends with the run.
"""

import argparse
import os
import sys
from collections import Counter
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from kintsugi.client import Client
from kintsugi.core import codec
from kintsugi.core.cluster import Cluster
from kintsugi.core.ending import Outcome
from kintsugi.core.errors import NotFoundError
from kintsugi.core.job import JobSettings, Ranges
from kintsugi.core.membership import Event, EventKind
from kintsugi.core.messages import JobView, Report, ReportStatus
from kintsugi.core.plan import Plan
from kintsugi.core.profile import Profile

NUM_MICROBATCHES, MICROBATCH_SIZE = 12, 4
PROFILE = Path(__file__).parents[2] / "profiles" / "models" / "gpt2-124m.a100-80g.json"


def plan_for(client: Client, job: str, world_size: int, attempt: str) -> list[int]:
    """Micro-batches of each rank, once the service knows who is there; the plan counts as applied.

    Args:
        client: of the service.
        job: created here where it is new, with as many workers as there are ranks.
        world_size: ranks that torchrun found.
        attempt: a name of this start of the ranks, never used before.
    """
    try:
        view = client.job(job)
    except NotFoundError:
        settings = JobSettings(num_microbatches=NUM_MICROBATCHES, ranges=Ranges(max_pp=1))
        view = client.create_job(
            job=job, profile=codec.load(Profile, PROFILE), cluster=Cluster.uniform(world_size), settings=settings
        )
    events = changes(view, world_size, attempt)
    answer = client.post_events(job, events) if events else client.plan(job)
    client.report(job, Report(generation=answer.generation, status=ReportStatus.APPLIED))
    print(f"generation {answer.generation} on {world_size} ranks: {answer.decision.policy.value}", flush=True)
    return [shares(answer.decision.plan)[f"w{rank:02d}"] for rank in range(world_size)]


def shares(plan: Plan) -> Counter[str]:
    """Micro-batches that each worker computes, those of dead slots included; pipelines have one stage here."""
    taken_over = {route.microbatch: route.worker for route in plan.routes}
    homes = [pipeline.stages[0].worker for pipeline in plan.pipelines for _ in range(pipeline.num_microbatches)]
    return Counter(str(taken_over.get(number, home)) for number, home in enumerate(homes))


def changes(view: JobView, world_size: int, attempt: str) -> list[Event]:
    """What the service does not know yet of who is there."""
    there = {f"w{rank:02d}" for rank in range(world_size)}
    generation = view.summary.generation
    told = [(EventKind.WORKER_FAILED, worker) for worker in sorted(set(view.alive) - there)]
    told += [(EventKind.WORKER_JOINED, worker) for worker in sorted(there - set(view.alive))]
    return [Event(kind=kind, id=f"{attempt}.{worker}", generation=generation, worker=worker) for kind, worker in told]


def main() -> None:
    """Train on this rank."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--service", required=True, help="URL of Kintsugi; its token comes from KINTSUGI_TOKEN")
    parser.add_argument("--job", default=os.environ.get("TORCHELASTIC_RUN_ID", "torchrun"))
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    if not dist.is_torchelastic_launched():
        sys.exit("start it by torchrun: the whole command stands at the top of this file")
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    told: list[list[int]] = [[]]
    if rank == 0:
        attempt = f"restart-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}-{os.getpid()}"
        with Client(options.service) as client:
            told = [plan_for(client, options.job, dist.get_world_size(), attempt)]
    dist.broadcast_object_list(told, src=0)
    number = told[0][rank]
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    torch.manual_seed(rank)
    loss = torch.zeros(())
    for _ in range(options.steps):
        optimizer.zero_grad()
        inputs = torch.randn(number * MICROBATCH_SIZE, 8)
        error = (model(inputs) - inputs.sum(dim=1, keepdim=True)).square().sum()
        loss = error / (NUM_MICROBATCHES * MICROBATCH_SIZE)
        (loss * dist.get_world_size()).backward()  # DDP takes the mean over ranks; the mean over all samples is wanted
        optimizer.step()
    print(f"rank {rank}: {number} of {NUM_MICROBATCHES} micro-batches, its part of the loss {loss.item():.4f}", flush=True)
    dist.barrier()  # nobody has failed
    if rank == 0:
        with Client(options.service) as client:
            client.end(options.job, Outcome.COMPLETED, by="torchrun_ddp")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
