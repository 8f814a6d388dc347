"""Steps of rerouted plans: shared out by the planner, beside the paper's even spread (Zhou et al., section IV-A) and by load alone.

    python -m benchmarks.rerouting [--jobs 600] [--seed 0]

Random grids of 3 to 10 pipelines of 2 to 6 stages, equal layers or not, 2 to 13 micro-batches in a pipeline, of which one to four
workers are lost. Steps are the estimator's. Prints by how much those of others are longer, by the number of lost workers, and how
long looking for shorter ones takes.
"""

import argparse
import random
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import mean, median

from rich.console import Console
from rich.progress import track
from rich.table import Table

from estimator.costs import Costs
from kintsugi.core.cluster import Cluster
from kintsugi.core.errors import InfeasibleError
from kintsugi.core.plan import Plan
from planner.policies.diverting import divert
from planner.policies.rerouting import reroute, reroute_evenly
from tests.builders import grid_plan, layer, profile_of

Job = tuple[Plan, Costs, list[str]]
"""A plan, its costs, and who is left."""

LAYER_SECONDS = (0.01, 0.03)
"""Of a pass through a layer, where layers differ."""
PLENTY_BYTES = 10**13


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    longer: dict[str, dict[int, list[float]]] = {
        "the even spread": defaultdict(list),
        "the best of four by load": defaultdict(list),
    }
    seconds = []
    for number in track(range(arguments.jobs), description="rerouting", transient=True):
        plan, costs, living = drawn(chance, differ=number % 2 == 0)
        try:
            even, by_load = reroute_evenly(plan, living, costs)[1], reroute(plan, living, costs)
        except InfeasibleError:  # nobody is left who holds some stage
            continue
        begun = time.process_time()
        ours = divert(*by_load, costs)[1]
        seconds.append(time.process_time() - begun)
        for name, other in zip(longer, (even, by_load[1]), strict=True):
            longer[name][len(plan.workers) - len(living)].append(other.iteration_seconds / ours.iteration_seconds - 1)
    console = Console()
    for name, own in longer.items():
        console.print(table(name, own))
    console.print(
        f"looking for shorter steps: median {median(seconds) * 1e3:.0f} ms, at most {max(seconds) * 1e3:.0f} ms of processor time"
    )


def drawn(chance: random.Random, *, differ: bool) -> Job:
    """A random job; `differ` says whether its layers do."""
    dp, pp = chance.randint(3, 10), chance.randint(2, 6)
    shares = [chance.randint(2, 13)] * dp
    num_layers = pp * chance.randint(1, 2)
    seconds = [chance.uniform(*LAYER_SECONDS) if differ else LAYER_SECONDS[0] for _ in range(2 * num_layers)]
    layers = [
        layer(f"layer{n}", forward_seconds=forward, backward_weight_seconds=weight)
        for n, (forward, weight) in enumerate(zip(seconds[::2], seconds[1::2], strict=True))
    ]
    plan = grid_plan(num_layers, [pp] * dp, shares)
    lost = set(chance.sample(plan.workers, chance.randint(1, min(4, dp - 1))))
    costs = Costs(profile_of(layers, memory_bytes=PLENTY_BYTES), Cluster.uniform(dp * pp))
    return plan, costs, [worker for worker in plan.workers if worker not in lost]


def table(name: str, longer: Mapping[int, Sequence[float]]) -> Table:
    """How much longer the steps of `name` are."""
    result = Table(title=f"step of {name}, longer than ours by")
    for column in ("lost workers", "jobs", "mean", "nine tenths below", "most", "least"):
        result.add_column(column, justify="right")
    for lost, own in sorted(longer.items()):
        ratios = sorted(own)
        figures = mean(ratios), ratios[len(ratios) * 9 // 10], ratios[-1], ratios[0]
        result.add_row(str(lost), str(len(ratios)), *(f"{figure:.1%}" for figure in figures))
    return result


if __name__ == "__main__":
    main()
