"""A plain DistributedDataParallel script with exact recovery: no agent, no plans, no service.

    torchrun --nproc-per-node 2 examples/plain_ddp.py runs/ddp
    kintsugi supervise runs/ddp -- torchrun --nproc-per-node 2 examples/plain_ddp.py runs/ddp --fail-at 12,25
    kintsugi audit runs/ddp

With `--fail-at`, rank 0 exits with 137 after these steps, one in each attempt, and the supervisor starts the script again. It
goes on from the latest checkpoint, also on another number of ranks; the global batch stays the same.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from kintsugi.runtime.checkpoints.recording import CheckpointOptions, Strategy
from kintsugi.runtime.plain import PlainRun

NUM_SAMPLES, NUM_FEATURES, NUM_CLASSES, GLOBAL_BATCH_SIZE = 500, 16, 4, 16


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """Points around four centres, [samples, features] and [samples]; the same in every process."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(NUM_CLASSES, (NUM_SAMPLES,), generator=generator)
    centres = torch.randn(NUM_CLASSES, NUM_FEATURES, generator=generator, dtype=torch.float64)
    return centres[labels] + torch.randn(NUM_SAMPLES, NUM_FEATURES, generator=generator, dtype=torch.float64), labels


def main() -> None:
    """Train on this rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run", help="folder for journals and checkpoints")
    parser.add_argument("--num-steps", type=int, default=40)
    parser.add_argument("--every-steps", type=int, default=5)
    parser.add_argument("--strategy", type=Strategy, choices=list(Strategy), default=Strategy.OVERLAPPED)
    parser.add_argument("--fail-at", default="", help="steps after which rank 0 exits with 137, one per attempt")
    options = parser.parse_args()
    failures = [int(step) for step in options.fail_at.split(",") if step]
    attempt = int(os.environ.get("KINTSUGI_ATTEMPT", "0"))
    fail_at = failures[attempt] if attempt < len(failures) else None

    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(NUM_FEATURES, 32), nn.Tanh(), nn.Linear(32, NUM_CLASSES)).double()
    ddp = DistributedDataParallel(model) if dist.is_initialized() else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10, gamma=0.5)
    points, labels = data()

    run = PlainRun(
        options.run,
        num_samples=NUM_SAMPLES,
        global_batch_size=GLOBAL_BATCH_SIZE,
        num_steps=options.num_steps,
        checkpoints=CheckpointOptions(every_steps=options.every_steps, strategy=options.strategy),
    )
    loss = float("nan")
    for step in range(run.restore(model, optimizer, scheduler), options.num_steps):
        samples = list(run.samples(step))
        optimizer.zero_grad()
        local = nn.functional.cross_entropy(ddp(points[samples]), labels[samples])
        local.backward()
        optimizer.step()
        scheduler.step()
        loss = run.commit(step, local)
        if step == fail_at and run.rank == 0:
            os._exit(137)
    run.close()
    if run.rank == 0:
        print(f"loss {loss!r} after {options.num_steps} steps, {run.stall_seconds:.3f} s for checkpoints")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
