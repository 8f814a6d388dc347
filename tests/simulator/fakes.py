"""A policy whose every answer can be reckoned by hand, and jobs for it."""

from dataclasses import dataclass, field, replace

from kintsugi.core.errors import InfeasibleError
from kintsugi.core.job import JobSettings, Ranges, Snapshot
from kintsugi.core.plan import IdleWorker, Pipeline, Plan, Stage
from kintsugi.core.profile import Profile
from kintsugi.simulator.faults import Faults
from kintsugi.simulator.job import Job
from kintsugi.simulator.running import Response, Running, StepPrice
from kintsugi.simulator.scenario import Grid
from tests.builders import FREE, uniform_profile

WORK = 12.0
"""Worker-seconds of a step: n workers take 12 / n seconds, two thirds of it computing and a third bubbles.

The slowest worker sets the pace.
"""


def free_profile(num_layers: int = 4, **settings: object) -> Profile:
    """Equal layers of 10 ms forward and 20 ms backward; links, reductions and updates take no time."""
    changes = {"gradient_bytes": 0, "optimizer_seconds": 0.0}
    return uniform_profile(num_layers, layer_changes=changes, inter_host=FREE, intra_host=FREE, **settings)


def job(profile: Profile | None = None, **changes: object) -> Job:
    """Two pipelines of two stages and eight micro-batches; a failure every hour."""
    values: dict[str, object] = {
        "profile": profile or free_profile(),
        "settings": JobSettings(num_microbatches=8, ranges=Ranges(min_pp=1, max_pp=4)),
        "first": Grid(dp=2, pp=2),
        "faults": Faults(worker_mtbf_seconds=14_400.0),
        "workers_per_host": 1,
        "num_spares": 0,
        "checkpoint_pause_seconds": 0.0,
        "planning_seconds": 0.0,
        "fixed_mtbf_seconds": None,
        "workers_per_failure": 1.0,
    }
    return Job(**{**values, **changes})


@dataclass
class Flat:
    """One pipeline with a stage per worker that is used; every change takes `pause_seconds`."""

    pause_seconds: float = 10.0
    rolls_back: bool = False
    saves: bool = False
    """Whether a change for workers that came begins with a checkpoint."""
    interval_seconds: float | None = None
    fewest: int = 1
    most: int = 4
    name: str = "flat"
    asked: list[Snapshot] = field(default_factory=list)

    def start(self, snapshot: Snapshot) -> Running:
        return self._running(snapshot)

    def respond(self, snapshot: Snapshot) -> Response:
        self.asked.append(snapshot)
        assert snapshot.plan is not None
        running = self._running(snapshot)
        is_hit = not set(snapshot.plan.workers) <= set(snapshot.alive)
        if len(running.plan.workers) == len(snapshot.plan.workers) and not is_hit:
            kept = replace(snapshot.plan, idle_workers=running.plan.idle_workers)
            return Response(running=replace(running, plan=kept), pause_seconds=0.0)
        saves = self.saves and not is_hit
        return Response(running=running, pause_seconds=self.pause_seconds, rolls_back=self.rolls_back and not saves, saves=saves)

    def _running(self, snapshot: Snapshot) -> Running:
        if len(snapshot.alive) < self.fewest:
            raise InfeasibleError("too few", field="alive", value=len(snapshot.alive))
        used, idle = snapshot.alive[: self.most], snapshot.alive[self.most :]
        cuts = [*range(len(used)), 4]
        stages = tuple(Stage(layer_start=a, layer_stop=b, worker=w) for a, b, w in zip(cuts, cuts[1:], used, strict=False))
        plan = Plan(
            pipelines=(Pipeline(num_microbatches=8, stages=stages),),
            idle_workers=tuple(IdleWorker(worker=worker, reason="over") for worker in idle),
        )
        step = WORK / len(used) / min(snapshot.cluster.by_id[worker].speed_ratio for worker in used)
        price = StepPrice(compute_seconds=step * 2 / 3, bubble_seconds=step / 3, reduction_seconds=0.0)
        return Running(plan=plan, price=price, checkpoint_interval_seconds=self.interval_seconds)
