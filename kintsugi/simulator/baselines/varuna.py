"""Varuna: job morphing (Athlur et al., EuroSys 2022).

Equal pipelines of any length; when workers go or come the job is morphed to the fastest grid for those that are left, and
restarts from the checkpoint that is written continuously beside the training.
"""

from dataclasses import dataclass

from kintsugi.simulator.baselines.common import Grids
from kintsugi.simulator.baselines.constants import VARUNA_CHECKPOINT_SECONDS


@dataclass(frozen=True)
class Varuna(Grids):
    """Morphs to the fastest grid, by way of a checkpoint."""

    name: str = "varuna"
    checkpoint_seconds: float = VARUNA_CHECKPOINT_SECONDS

    def interval_seconds(self, num_workers: int) -> float:
        """Continuous checkpoints, at a fixed interval."""
        del num_workers
        return self.checkpoint_seconds
