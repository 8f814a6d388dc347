"""How often to write a checkpoint, from what one costs and how often something fails."""

import math

from kintsugi.core import checks


def young_interval_seconds(cost_seconds: float, mtbf_seconds: float) -> float:
    """Training time between two checkpoints, to first order: sqrt(2 C M) (Young, 1974).

    Args:
        cost_seconds: that one checkpoint keeps the job from training.
        mtbf_seconds: mean time between failures of the whole job.
    """
    checks.non_negative("cost_seconds", cost_seconds)
    checks.positive("mtbf_seconds", mtbf_seconds)
    return math.sqrt(2 * cost_seconds * mtbf_seconds)


def daly_interval_seconds(cost_seconds: float, mtbf_seconds: float) -> float:
    """The same to higher order (Daly, 2006, equation 37).

    sqrt(2 C M) (1 + sqrt(C / 2M) / 3 + (C / 2M) / 9) - C where C is below 2M, else M.
    """
    young = young_interval_seconds(cost_seconds, mtbf_seconds)
    ratio = cost_seconds / (2 * mtbf_seconds)
    return young * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost_seconds if ratio < 1 else mtbf_seconds


def expected_run_seconds(
    work_seconds: float, interval_seconds: float, cost_seconds: float, restart_seconds: float, mtbf_seconds: float
) -> float:
    """Expected time to do `work_seconds` of training under failures that follow a Poisson process (Daly, 2006, equation 20).

    M e^(R/M) (e^((t + C)/M) - 1) W / t: what both intervals are approximate minima of.
    """
    segment = math.expm1((interval_seconds + cost_seconds) / mtbf_seconds)
    return mtbf_seconds * math.exp(restart_seconds / mtbf_seconds) * segment * work_seconds / interval_seconds
