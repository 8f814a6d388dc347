"""Draw docs/schedule.svg: `scripts/make_pictures [FILE]`.

GPT-2 medium on six A100 hosts, DP 2 x PP 3, planned by the planner; then one worker is lost, and the planner is asked
for the best plan of either policy.
"""

import sys
from dataclasses import replace
from pathlib import Path

from estimator.gantt import to_svg
from estimator.timeline import Panel, panel
from kintsugi.core import codec
from kintsugi.core.cluster import Cluster, worker_name
from kintsugi.core.job import JobSettings, Ranges, Snapshot
from kintsugi.core.plan import Plan, Policy
from kintsugi.core.profile import Profile
from planner.replan import replan

PROFILE = Path("profiles/models/gpt2-medium.a100-80g.json")
NUM_MICROBATCHES = 12
LOST = worker_name(4)
TITLES = {
    Policy.DATA_REROUTING: f"After {LOST} is lost: data rerouting (nothing moves)",
    Policy.DYNAMIC_PARALLELISM: f"After {LOST} is lost: dynamic parallelism (asymmetric pipelines)",
}


def before(profile: Profile, cluster: Cluster) -> Snapshot:
    """A healthy job that has carried out its first plan, DP 2 x PP 3."""
    grid = Ranges(min_dp=2, max_dp=2, min_pp=3, max_pp=3)
    everyone = tuple(worker.id for worker in cluster.workers)
    empty = Snapshot(
        profile=profile,
        cluster=cluster,
        settings=JobSettings(num_microbatches=NUM_MICROBATCHES, ranges=grid),
        plan=None,
        alive=everyone,
        generation=0,
    )
    return replace(
        empty, plan=replan(empty).plan, settings=JobSettings(num_microbatches=NUM_MICROBATCHES, ranges=Ranges(min_dp=2, max_dp=2))
    )


def after(healthy: Snapshot, policy: Policy) -> Plan:
    """The best plan of `policy` without the lost worker."""
    alive = tuple(worker for worker in healthy.alive if worker != LOST)
    settings = replace(healthy.settings, policy=policy)
    return replan(replace(healthy, alive=alive, settings=settings, generation=1)).plan


def panels() -> tuple[Panel, ...]:
    """Before, and after under every policy of `TITLES`."""
    profile = codec.load(Profile, PROFILE)
    cluster = Cluster.uniform(6)
    healthy = before(profile, cluster)
    assert healthy.plan is not None
    first = panel("Before: two pipelines of three stages", healthy.plan, profile, cluster)
    mended = (panel(title, after(healthy, policy), profile, cluster, lost=[LOST]) for policy, title in TITLES.items())
    return (first, *mended)


def main(path: Path) -> None:
    """Write the picture to `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(to_svg(panels(), description="One training step before and after the loss of a worker"))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/schedule.svg"))
