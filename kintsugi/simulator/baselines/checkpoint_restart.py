"""Checkpoint restart at the interval of Young and Daly: the classic policy.

Workers that fail end the job; it restarts from its last checkpoint on equal pipelines of the workers that are left. The
interval is the optimum of Young (*A first order approximation to the optimum checkpoint interval*, 1974) with the pause taken
off by Daly (*A higher order estimate of the optimum checkpoint interval for restart dumps*, 2006).
"""

import math
from dataclasses import dataclass

from kintsugi.simulator.baselines.common import Grids

SHORTEST_SECONDS = 1.0
"""Interval where a checkpoint takes no time."""


def young_daly_seconds(pause_seconds: float, mtbf_seconds: float) -> float:
    """Training time between two checkpoints that loses least, in seconds: sqrt(2 * pause * mtbf) - pause.

    Daly's bound holds for pauses below half the mean time between failures; above it the interval is that mean time.
    """
    if pause_seconds >= mtbf_seconds / 2:
        return mtbf_seconds
    return max(SHORTEST_SECONDS, math.sqrt(2 * pause_seconds * mtbf_seconds) - pause_seconds)


@dataclass(frozen=True)
class CheckpointRestart(Grids):
    """Restart on the fastest grid of equal pipelines."""

    name: str = "checkpoint-restart"

    def interval_seconds(self, num_workers: int) -> float:
        """Young's and Daly's."""
        return young_daly_seconds(self.job.checkpoint_pause_seconds, self.job.mtbf_seconds(num_workers))
