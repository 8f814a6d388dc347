"""Parcae: liveput-optimised grids with live migration (Duan et al., NSDI 2024).

Equal pipelines. Of all grids the one with the most liveput is taken: its throughput, expected over the preemptions of the
look-ahead, which strike at random and end the pipeline they hit unless an idle worker stands in. State moves live from workers
that hold it. Its forecast of availability is read as: workers are lost at their mean rate.
"""

from dataclasses import dataclass
from functools import cached_property

from kintsugi.core.errors import InfeasibleError
from kintsugi.simulator.baselines.common import LiveGrids
from kintsugi.simulator.baselines.constants import PARCAE_LOOK_AHEAD_SECONDS
from kintsugi.simulator.transitions import grid_seconds
from planner.arranging.degrees import degrees


def expected_pipelines(num_workers: int, dp: int, pp: int, num_preempted: float) -> float:
    """How many of `dp` pipelines are left when so many of all workers, drawn at random, are preempted.

    A pipeline is whole with probability (1 - pp / workers) ** preempted; idle workers make good for as many losses.
    """
    idle = num_workers - dp * pp
    struck = max(0.0, num_preempted - idle)
    share = 1 - pp / num_workers
    return dp * share**struck if share > 0 else dp * (struck == 0)


@dataclass(frozen=True)
class Parcae(LiveGrids):
    """Grids by liveput."""

    name: str = "parcae"
    look_ahead_seconds: float = PARCAE_LOOK_AHEAD_SECONDS

    def chosen(self, num_workers: int) -> tuple[int, int]:
        """The grid with the most liveput.

        Raises:
            InfeasibleError: none fits the ranges or memory.
        """
        if num_workers not in self._known:
            self._known[num_workers] = self._search(num_workers)
        return self._known[num_workers]

    @cached_property
    def _known(self) -> dict[int, tuple[int, int]]:
        return {}

    def _search(self, num_workers: int) -> tuple[int, int]:
        settings, profile = self.job.settings, self.job.profile
        allowed = degrees(settings.ranges, num_workers, profile.num_layers, settings.num_microbatches)
        preempted = self.look_ahead_seconds / self.job.mtbf_seconds(num_workers) * self.job.workers_per_failure
        best: tuple[float, int, int] | None = None
        for pp in allowed.pp:
            for dp in range(allowed.dp[0], min(num_workers // pp, allowed.dp[-1]) + 1):
                seconds = grid_seconds(profile, settings, dp, pp)
                if seconds is not None:
                    liveput = expected_pipelines(num_workers, dp, pp, preempted) / dp / seconds
                    best = max(best or (0.0, 0, 0), (liveput, dp, pp))
        if best is None:
            raise InfeasibleError("no grid of equal pipelines fits the ranges and memory", field="workers", value=num_workers)
        return best[1], best[2]
