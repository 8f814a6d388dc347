"""Plans over links of which some are slow, against plans for equal links, both priced over the links that there are."""

import argparse
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from estimator.estimate import estimate
from kintsugi.core import codec
from kintsugi.core.cluster import Cluster, HostLink
from kintsugi.core.job import JobSettings, Snapshot
from kintsugi.core.profile import Profile
from planner.replan import replan

MODELS = ("gpt2-medium.a100-80g", "llama2-7b.a100-80g")


def of_racks(num_workers: int, num_racks: int) -> Cluster:
    """Workers on hosts of their own, which are named in turn from rack to rack, with slow links between racks."""
    return _with_slow(Cluster.uniform(num_workers), lambda a, b: a % num_racks != b % num_racks)


def with_random_slow(num_workers: int, share: float, seed: int) -> Cluster:
    """Workers on hosts of their own, with so many of all links slow."""
    chance = random.Random(seed)
    return _with_slow(Cluster.uniform(num_workers), lambda *_: chance.random() < share)


def _with_slow(cluster: Cluster, is_slow: Callable[[int, int], bool]) -> Cluster:
    pairs = itertools.combinations(range(len(cluster.hosts)), 2)
    slow = ((cluster.hosts[a], cluster.hosts[b]) for a, b in pairs if is_slow(a, b))
    return replace(cluster, links=tuple(HostLink(between=pair, alpha_seconds=4e-5, beta_seconds_per_byte=2e-9) for pair in slow))


def planned(seed: int) -> Iterator[str]:
    """Rows of steps: planned for equal links, and for those that there are."""
    for model in MODELS:
        profile = codec.load(Profile, Path(f"profiles/models/{model}.json"))
        for num_workers in (24, 64):
            clusters = {
                "2 racks": of_racks(num_workers, 2),
                "4 racks": of_racks(num_workers, 4),
                "2 % of all slow": with_random_slow(num_workers, 0.02, seed),
                "20 % of all slow": with_random_slow(num_workers, 0.2, seed),
            }
            for name, cluster in clusters.items():
                asked = Snapshot(
                    profile=profile,
                    cluster=cluster,
                    settings=JobSettings(num_microbatches=2 * num_workers),
                    plan=None,
                    alive=tuple(cluster.by_id),
                    generation=0,
                )
                blind = replan(replace(asked, cluster=replace(cluster, links=()))).plan
                blind_seconds, found = estimate(blind, profile, cluster).iteration_seconds, replan(asked)
                seconds, bound = found.estimate.iteration_seconds, found.search.lower_bound_seconds
                yield (
                    f"| {model} | {num_workers} | {name} | {blind_seconds:.3f} | {seconds:.3f} | {blind_seconds / seconds:.2f} "
                    f"| {seconds / bound:.2f} | {found.search.elapsed_seconds:.2f} |"
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the links that are slow")
    arguments = parser.parse_args()
    print("| model | workers | links | for equal links (s) | ours (s) | times faster | over bound | planning (s) |")
    print("|---" * 8 + "|")
    for row in planned(arguments.seed):
        print(row, flush=True)


if __name__ == "__main__":
    main()
