"""Checkpoint restart at the interval of Young and Daly: the classic policy.

Workers that fail end the job; it restarts from its last checkpoint on equal pipelines of the workers that are left. The
interval is Daly's (*A higher order estimate of the optimum checkpoint interval for restart dumps*, 2006), which refines Young's
(1974).
"""

from dataclasses import dataclass

from estimator.interval import daly_interval_seconds
from kintsugi.simulator.baselines.common import Grids

SHORTEST_SECONDS = 1.0
"""Interval where a checkpoint takes no time."""


@dataclass(frozen=True)
class CheckpointRestart(Grids):
    """Restart on the fastest grid of equal pipelines."""

    name: str = "checkpoint-restart"

    def interval_seconds(self, num_workers: int) -> float:
        """Young's and Daly's."""
        interval = daly_interval_seconds(self.job.checkpoint_pause_seconds, self.job.mtbf_seconds(num_workers))
        return max(SHORTEST_SECONDS, interval)
