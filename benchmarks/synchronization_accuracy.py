"""What switching costs in accuracy: a residual network learns handwritten digits while workers join, and leave again.

The adaptive runs follow the number of workers: synchronous SGD for few, AD-PSGD for many, and back when workers leave; one
lengthens the steps that workers take alone (`matches_synchronous`), one does not. The other run is synchronous SGD with the
same workers, samples and steps. Real processes, data that come with scikit-learn, a third of them held out; accuracy is that
of the one model that `finish` leaves.

    python -m benchmarks.synchronization_accuracy [--seeds S] [--steps N] [--rate R]

Exits with 1 where the mean accuracy of the adaptive run with lengthened steps is more than ALLOWED_POINTS below that of
synchronous SGD.
"""

import argparse
import itertools
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from rich.console import Console
from torch import Tensor, nn

from benchmarks.arguments import above_zero, at_least
from benchmarks.members import LocalMembers, Member
from kintsugi.core.cluster import worker_name
from kintsugi.matrix.models import residual_layers
from kintsugi.runtime.synchronization import (
    PairwiseAveraging,
    PeerTransport,
    SynchronizedOptimizer,
    SynchronousSGD,
    WorkerCountPolicy,
)

ALLOWED_POINTS = 0.5
SIZES = (1, 2, 3, 4, 5, 6, 4, 3, 2)
"""Workers by interval."""
MANY = 4
"""Workers from which the adaptive run does not wait."""
BATCH, NUM_BLOCKS, WIDTH, NUM_HELD_OUT = 16, 1, 16, 600
LEARNING_RATE = 5e-3
SYNCHRONOUS, ADAPTIVE, PLAIN = "S-SGD", "adaptive", "adaptive, steps as they are"
RUNS = (SYNCHRONOUS, ADAPTIVE, PLAIN)


@dataclass(frozen=True, slots=True)
class Samples:
    """Images [N, 1, 8, 8] from 0 to 1 and labels [N]; the last ones are held out."""

    pixels: Tensor
    labels: Tensor

    @classmethod
    def of(cls, seed: int) -> "Samples":
        """In an order of its own for each seed."""
        from sklearn.datasets import load_digits  # here, for it takes long to import

        digits = load_digits()
        order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(seed))
        pixels = torch.from_numpy(digits.images).float().unsqueeze(1) / 16.0
        return cls(pixels[order], torch.from_numpy(digits.target)[order])


@dataclass(slots=True)
class _Trainee:
    model: nn.Sequential
    optimizer: SynchronizedOptimizer
    reasons: list[str]
    random: torch.Generator


@dataclass(frozen=True, slots=True)
class Part:
    """What a worker does in one interval."""

    seed: int
    run: str
    rank: int
    num_workers: int
    until_step: int
    """By the count that workers agree on."""
    last_step: int
    """Of the whole run, at which the learning rate is zero."""
    learning_rate: float
    """At the beginning."""


def train(member: Member, samples: Samples, part: Part) -> tuple[float, list[str]]:
    """Accuracy on what is held out, and why strategies changed; both once the last interval is over."""
    assert member.groups is not None
    transport = PeerTransport(member.groups.all_reduce, rank=part.rank, num_workers=part.num_workers)
    if member.kept.get("part") != (part.seed, part.run):
        member.kept |= {"part": (part.seed, part.run), "trainee": _trainee(part, transport)}
    else:
        member.kept["trainee"].optimizer.adopt(transport)
    trainee: _Trainee = member.kept["trainee"]
    while trainee.optimizer.num_steps < part.until_step:
        chosen = torch.randint(len(samples.labels) - NUM_HELD_OUT, (BATCH,), generator=trainee.random)
        trainee.optimizer.zero_grad()
        nn.functional.cross_entropy(trainee.model(samples.pixels[chosen]), samples.labels[chosen]).backward()
        trainee.optimizer.step()
    if part.until_step < part.last_step:
        return 0.0, []
    trainee.optimizer.finish()
    return _accuracy(trainee.model, samples), trainee.reasons


def _trainee(part: Part, transport: PeerTransport) -> _Trainee:
    torch.manual_seed(part.seed)
    layers = residual_layers(NUM_BLOCKS, WIDTH)
    model = nn.Sequential(*[layer.build() for layer in layers])
    reasons: list[str] = []
    policy = WorkerCountPolicy({1: SynchronousSGD.name, MANY: PairwiseAveraging.name}) if part.run != SYNCHRONOUS else None
    optimizer = SynchronizedOptimizer(
        torch.optim.Adam(model.parameters(), lr=part.learning_rate),
        [SynchronousSGD(), PairwiseAveraging(seed=part.seed, matches_synchronous=part.run == ADAPTIVE)],
        transport,
        policy=policy,
        on_switch=lambda switch: reasons.append(switch.reason),
        learning_rate=lambda step: part.learning_rate * max(1.0 - step / part.last_step, 0.0),
    )
    return _Trainee(model, optimizer, reasons, torch.Generator().manual_seed(1000 * part.seed + part.rank))


@torch.no_grad()
def _accuracy(model: nn.Module, samples: Samples) -> float:
    """In percent, of the samples held out."""
    found = model(samples.pixels[-NUM_HELD_OUT:]).argmax(dim=1)
    return 100.0 * float((found == samples.labels[-NUM_HELD_OUT:]).double().mean())


def trained(members: LocalMembers, seed: int, run: str, num_steps: int, learning_rate: float) -> tuple[float, list[str]]:
    """One whole run; all its workers end with the same model."""
    samples = Samples.of(seed)
    for index, size in enumerate(SIZES):
        names = members.names[:size]
        members.build(names, ())
        until, last = num_steps * (index + 1), num_steps * len(SIZES)
        part = partial(Part, seed, run, num_workers=size, until_step=until, last_step=last, learning_rate=learning_rate)
        answers = members.ask({name: (train, (samples, part(rank=rank))) for rank, name in enumerate(names)})
    accuracies = {accuracy for accuracy, _ in answers.values()}
    assert len(accuracies) == 1, "all workers have the same model in the end"
    return accuracies.pop(), answers[members.names[0]][1]


def differences(accuracies: Mapping[str, Sequence[float]], run: str) -> list[float]:
    """Points that a run has over synchronous SGD, seed by seed."""
    return [own - other for own, other in zip(accuracies[run], accuracies[SYNCHRONOUS], strict=True)]


def standard_error(values: Sequence[float]) -> float:
    """Of the mean; not a number where there is one value only."""
    return statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")


def report(accuracies: Mapping[str, Sequence[float]], reasons: Sequence[str]) -> str:
    """A Markdown table: the seeds, their mean, and the mean difference with its standard error."""
    lines = [f"| seed | {' | '.join(f'{run} (%)' for run in RUNS)} |", "|---" * (1 + len(RUNS)) + "|"]
    for seed, values in enumerate(zip(*(accuracies[run] for run in RUNS), strict=True)):
        lines.append(f"| {seed} | {' | '.join(f'{value:.2f}' for value in values)} |")
    lines.append(f"| mean | {' | '.join(f'{statistics.fmean(accuracies[run]):.2f}' for run in RUNS)} |")
    found = [differences(accuracies, run) for run in RUNS[1:]]
    cells = [f"{statistics.fmean(values):+.2f} ± {standard_error(values):.2f}" for values in found]
    lines.append(f"| over S-SGD (points, standard error) | | {' | '.join(cells)} |")
    return "\n".join((*lines, "", *(f"- {reason}" for reason in reasons)))


def main() -> int:
    """Train all runs and compare; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=at_least(1), default=8, help="runs of each kind (default 8)")
    parser.add_argument("--steps", type=at_least(1), default=100, help="of each worker in each interval (default 100)")
    parser.add_argument("--rate", type=above_zero, default=LEARNING_RATE, help=f"learning rate (default {LEARNING_RATE:g})")
    arguments = parser.parse_args()
    console, began = Console(stderr=True, highlight=False), time.monotonic()
    accuracies: dict[str, list[float]] = {run: [] for run in RUNS}
    reasons: list[str] = []
    with LocalMembers([worker_name(index) for index in range(max(SIZES))]) as members:
        for seed, run in itertools.product(range(arguments.seeds), RUNS):
            accuracy, told = trained(members, seed, run, arguments.steps, arguments.rate)
            accuracies[run].append(accuracy)
            reasons = told or reasons
            console.print(f"seed {seed}, {run}: {accuracy:.2f} %")
    print(report(accuracies, reasons))
    difference = statistics.fmean(differences(accuracies, ADAPTIVE))
    print(
        f"\nAdaptive {difference:+.2f} points; asked for: {-ALLOWED_POINTS:+.1f} at least. {time.monotonic() - began:.0f} s; "
        f"workers {', '.join(map(str, SIZES))}; load of the machine at the end {os.getloadavg()[0]:.1f}."
    )
    return 0 if difference >= -ALLOWED_POINTS else 1


if __name__ == "__main__":
    sys.exit(main())
