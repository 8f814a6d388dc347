"""A plain training script whose workers synchronise as the cluster allows, with two strategies of its own.

    torchrun --nproc-per-node 2 examples/adaptive_synchronization.py

Training begins with synchronous SGD. From step 40 on workers average in pairs and do not wait for each other, from step 80 on
they average every eighth step, and from step 120 on synchronous SGD returns. `ThroughputPolicy` and `WorkerCountPolicy`
decide by what is measured instead.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn

from kintsugi.runtime.synchronization import (
    PairwiseAveraging,
    PeerTransport,
    Replica,
    SchedulePolicy,
    Strategy,
    Switch,
    SynchronizedOptimizer,
    SynchronousSGD,
)

NUM_SAMPLES, NUM_FEATURES, NUM_CLASSES, NUM_STEPS = 600, 16, 4, 160


class LocalSGD(Strategy):
    """Workers step alone and take the mean of their models every so many steps (Stich 2019)."""

    name = "local_sgd"

    def __init__(self, every_steps: int) -> None:
        """`every_steps`: between two means."""
        self._every_steps = every_steps

    def step(self, replica: Replica) -> None:
        """The mean is taken over, and the own gradient applied to it, in one go or not at all."""
        is_due = replica.num_steps % self._every_steps == 0
        replica.apply(model=replica.mean_model() if is_due else None)


class Lookahead(SynchronousSGD):
    """Synchronous SGD whose weights go back part of the way to slow ones every so many steps (Zhang et al. 2019)."""

    name = "lookahead"

    def __init__(self, every_steps: int, slow_ratio: float) -> None:
        """`slow_ratio`: of the way from the slow weights to the fast ones that both take."""
        self._every_steps, self._slow_ratio = every_steps, slow_ratio

    def enter(self, replica: Replica) -> None:
        """Slow weights begin where the fast ones are."""
        self._slow = replica.model()

    def applied(self, replica: Replica) -> None:
        """Every worker does the same, so replicas stay equal."""
        if replica.num_steps % self._every_steps == 0:
            self._slow = self._slow.lerp(replica.model(), self._slow_ratio)
            replica.load(self._slow)


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """Points around four centres, [samples, features] and [samples]; the same in every process."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(NUM_CLASSES, (NUM_SAMPLES,), generator=generator)
    centres = torch.randn(NUM_CLASSES, NUM_FEATURES, generator=generator)
    return centres[labels] + torch.randn(NUM_SAMPLES, NUM_FEATURES, generator=generator), labels


def main() -> None:
    """Train on this rank."""
    if not dist.is_torchelastic_launched():
        sys.exit("start it by torchrun: torchrun --nproc-per-node 2 examples/adaptive_synchronization.py")
    dist.init_process_group("gloo")
    rank, num_workers = dist.get_rank(), dist.get_world_size()
    points, labels = data()
    model = nn.Sequential(nn.Linear(NUM_FEATURES, 32), nn.Tanh(), nn.Linear(32, NUM_CLASSES))

    def tell(switch: Switch) -> None:
        if rank == 0:
            print(f"step {switch.step}: from {switch.before} to {switch.after}, because {switch.reason}")

    optimizer = SynchronizedOptimizer(
        torch.optim.Adam(model.parameters(), lr=1e-2),
        [SynchronousSGD(), PairwiseAveraging(matches_synchronous=True), LocalSGD(every_steps=8)],
        PeerTransport.of_process_group(),
        policy=SchedulePolicy([(40, PairwiseAveraging.name), (80, LocalSGD.name), (120, SynchronousSGD.name)]),
        on_switch=tell,
    )
    while (step := optimizer.num_steps) < NUM_STEPS:
        chosen = torch.randperm(NUM_SAMPLES, generator=torch.Generator().manual_seed(step))[:64][rank::num_workers]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(points[chosen]), labels[chosen]).backward()
        optimizer.step()
    optimizer.finish()
    if rank == 0:
        accuracy = (model(points).argmax(dim=1) == labels).float().mean()
        print(f"{accuracy:.1%} of the samples are told apart after {optimizer.num_steps} steps")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
