"""Plans over links of which some are slow, or all differ, against plans for equal links, both priced over those that there are."""

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
LEAST_BETA = 2e-10
"""Of the links that all differ, in seconds per byte."""


def of_racks(num_workers: int, num_racks: int) -> Cluster:
    """Workers on hosts of their own, which are named in turn from rack to rack, with slow links between racks."""
    return _with_slow(Cluster.uniform(num_workers), lambda a, b: a % num_racks != b % num_racks)


def with_random_slow(num_workers: int, share: float, seed: int) -> Cluster:
    """Workers on hosts of their own, with so many of all links slow."""
    chance = random.Random(seed)
    return _with_slow(Cluster.uniform(num_workers), lambda *_: chance.random() < share)


def with_all_different(num_workers: int, most: float, seed: int) -> Cluster:
    """Workers on hosts of their own, each link with a rate of its own down to one `most`th, as many in each octave."""
    chance = random.Random(seed)
    return with_links(Cluster.uniform(num_workers), lambda *_: LEAST_BETA * most ** chance.random())


def _with_slow(cluster: Cluster, is_slow: Callable[[int, int], bool]) -> Cluster:
    return with_links(cluster, lambda a, b: 2e-9 if is_slow(a, b) else None)


def with_links(cluster: Cluster, beta: Callable[[int, int], float | None], *, alpha_seconds: float = 4e-5) -> Cluster:
    """The cluster with links of so many seconds per byte between hosts, by their numbers; those of None are the profile's."""
    links = {(a, b): beta(a, b) for a, b in itertools.combinations(range(len(cluster.hosts)), 2)}
    return replace(
        cluster,
        links=tuple(
            HostLink(between=(cluster.hosts[a], cluster.hosts[b]), alpha_seconds=alpha_seconds, beta_seconds_per_byte=own)
            for (a, b), own in links.items()
            if own is not None
        ),
    )


def clusters(seed: int) -> Iterator[tuple[str, Cluster]]:
    """What the links are like, and a cluster with such links."""
    for num_workers in (24, 64):
        yield "2 racks", of_racks(num_workers, 2)
        yield "4 racks", of_racks(num_workers, 4)
        yield "2 % of all slow", with_random_slow(num_workers, 0.02, seed)
        yield "20 % of all slow", with_random_slow(num_workers, 0.2, seed)
    for num_workers in (8, 16):
        for most in (2, 20):
            yield f"all differ, up to {most} times", with_all_different(num_workers, most, seed)


def planned(seed: int) -> Iterator[str]:
    """Rows of steps: planned for equal links, and for those that there are."""
    for model in MODELS:
        profile = codec.load(Profile, Path(f"profiles/models/{model}.json"))
        for name, cluster in clusters(seed):
            asked = Snapshot(
                profile=profile,
                cluster=cluster,
                settings=JobSettings(num_microbatches=2 * len(cluster.workers)),
                plan=None,
                alive=tuple(cluster.by_id),
                generation=0,
            )
            blind = replan(replace(asked, cluster=replace(cluster, links=()))).plan
            blind_seconds, found = estimate(blind, profile, cluster).iteration_seconds, replan(asked)
            lost = replace(asked, plan=found.plan, alive=asked.alive[1:], generation=1)
            seconds, over = found.estimate.iteration_seconds, 1 + found.search.gap_ratio
            yield (
                f"| {model} | {len(asked.alive)} | {name} | {blind_seconds:.3f} | {seconds:.3f} | {blind_seconds / seconds:.2f} "
                f"| {over:.2f} | {found.search.elapsed_seconds:.2f} | {replan(lost).search.elapsed_seconds:.2f} |"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the links that are slow")
    arguments = parser.parse_args()
    print(
        "| model | workers | links | for equal links (s) | ours (s) | times faster | over bound | planning (s) | after a loss (s) |"
    )
    print("|---" * 9 + "|")
    for row in planned(arguments.seed):
        print(row, flush=True)


if __name__ == "__main__":
    main()
