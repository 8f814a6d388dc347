"""Throughput retained after a loss, as the estimator says it, in the settings of Chameleon's figure 6.

Published is what Ascend devices kept; the paper gives grids and a range of batch sizes (section V-A), but neither the batch
of the figure, the sequence length, the links nor the new plan. So every batch size at the ends and in the middle of that
range is estimated, for every number of pipelines that Chameleon's search looks at.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from benchmarks.validation.tables import shape_of
from kintsugi.core import codec
from kintsugi.core.cluster import Cluster
from kintsugi.core.errors import InfeasibleError
from kintsugi.core.job import JobSettings, Ranges, Snapshot
from kintsugi.core.plan import Plan, Policy
from kintsugi.core.profile import Profile
from planner.replan import replan

PROFILES = Path(__file__).parents[2] / "profiles" / "models"
MEMORY_BYTES = 64_000_000_000
"""Of an Ascend 910B (section V-A)."""
BATCHES = (16, 32, 64)
"""Micro-batches of one sample: "the batch size ranges from 16 to 64"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A bar of figure 6."""

    name: str
    dp: int
    pp: int
    profile: str
    workers_per_host: int
    published: float
    """Share of the throughput before the loss."""


SETTINGS = (
    Setting(name="8 -> 7", dp=2, pp=4, profile="llama2-7b.a100-80g", workers_per_host=8, published=0.9622),
    Setting(name="16 -> 15", dp=4, pp=4, profile="llama2-7b.a100-80g", workers_per_host=8, published=0.8900),
    Setting(name="32 -> 24", dp=2, pp=2, profile="llama2-7b.a100-80g-tp8", workers_per_host=1, published=0.7438),
)
"""(PP, DP, TP) of (4, 2, 1), (4, 4, 1) and (2, 2, 8): a worker of the last one is a host of eight devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retained:
    """What one setting keeps with one batch size, as shares of the throughput before the loss; null where infeasible."""

    setting: Setting
    num_microbatches: int
    rerouted: float | None
    fewer: float | None
    """New pipelines, one less than before."""
    same: float | None
    more: float | None
    chosen: float
    """By Kintsugi's planner, which may take any number of pipelines."""
    plan: Plan
    """Chosen for the loss of the first worker."""


def retained(setting: Setting, num_microbatches: int) -> Retained:
    """Estimate what is kept, on average over the loss of each worker."""
    profile = _profile(setting)
    cluster = Cluster.uniform(setting.dp * setting.pp, workers_per_host=setting.workers_per_host)
    grid = Ranges(min_dp=setting.dp, max_dp=setting.dp, min_pp=setting.pp, max_pp=setting.pp)
    alive = tuple(cluster.by_id)
    first = replan(
        Snapshot(
            profile=profile,
            cluster=cluster,
            settings=JobSettings(num_microbatches=num_microbatches, ranges=grid),
            plan=None,
            alive=alive,
            generation=0,
        )
    )

    def kept(policy: Policy | None, ranges: Ranges) -> tuple[float, Plan] | None:
        settings = JobSettings(num_microbatches=num_microbatches, ranges=ranges, policy=policy)
        asked = Snapshot(profile=profile, cluster=cluster, settings=settings, plan=first.plan, alive=alive, generation=1)
        try:
            found = [replan(replace(asked, alive=tuple(own for own in alive if own != lost))) for lost in alive]
        except InfeasibleError:
            return None
        before = first.estimate.iteration_seconds
        return fmean(before / own.estimate.iteration_seconds for own in found), found[0].plan

    def share(policy: Policy, ranges: Ranges) -> float | None:
        found = kept(policy, ranges)
        return None if found is None else found[0]

    chosen = kept(None, Ranges())
    assert chosen is not None, "the planner finds no plan for a setting that the paper ran"
    fewer, same, more = (
        share(Policy.DYNAMIC_PARALLELISM, Ranges(min_dp=dp, max_dp=dp)) for dp in range(setting.dp - 1, setting.dp + 2)
    )
    return Retained(
        setting=setting,
        num_microbatches=num_microbatches,
        rerouted=share(Policy.DATA_REROUTING, Ranges()),
        fewer=fewer,
        same=same,
        more=more,
        chosen=chosen[0],
        plan=chosen[1],
    )


def _profile(setting: Setting) -> Profile:
    profile = codec.loads(Profile, (PROFILES / f"{setting.profile}.json").read_text())
    return replace(profile, device=replace(profile.device, memory_bytes=MEMORY_BYTES))


def all_retained() -> list[Retained]:
    """Every setting with every batch size."""
    return [retained(setting, batch) for setting in SETTINGS for batch in BATCHES]


def table(rows: Sequence[Retained]) -> str:
    """As Markdown."""
    lines = [
        "| devices, published | micro-batches | rerouted | a pipeline less | as many | one more | chosen | its layers per stage |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.setting.name}: {row.setting.published:.2%} | {row.num_microbatches} | {_percent(row.rerouted)} "
        f"| {_percent(row.fewer)} | {_percent(row.same)} | {_percent(row.more)} | {row.chosen:.2%} | {shape_of(row.plan)} |"
        for row in rows
    ]
    return "\n".join(lines)


def _percent(value: float | None) -> str:
    return "no memory" if value is None else f"{value:.2%}"
