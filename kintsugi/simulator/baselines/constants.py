"""Every constant of the baselines, with its source; what a paper leaves open is an assumption, listed in docs/simulator.md.

All policies share the profile's detection, regrouping, restart, links and checkpoint rates, and the estimator's step times,
so that they differ in what they decide alone.
"""

OOBLECK_FAULT_TOLERANCE = 3
"""f: any f failures at once leave a replica of every layer, by f + 1 pipelines at least (Oobleck, section 4).

The value is the user's; assumed.
"""

RECYCLE_STAGGERS_OPTIMIZER = True
"""Every stage updates when its own gradients are reduced; the next step begins behind it (ReCycle, section 4)."""

BAMBOO_DEPTH_RATIO = 1.5
"""Pipelines have half as many stages again as memory asks for, to hold the replicas (Bamboo, section 5)."""

BAMBOO_HIDES_FORWARD = True
"""The redundant forward pass runs in bubbles first; only what does not fit makes the step longer (Bamboo, section 5)."""

PARCAE_LOOK_AHEAD_SECONDS = 60.0 * 12
"""Parcae maximises liveput over its look-ahead, 12 intervals of a minute (assumed), for the preemptions that it expects."""

VARUNA_CHECKPOINT_SECONDS = 600.0
"""Varuna checkpoints continuously, every few minutes (the interval is assumed), and writes beside the training."""

HOT_SPARE_PIPELINES = 1
"""So many pipelines' worth of workers wait where the scenario names no spares (assumed)."""

CHAMELEON_DP_RANGE = 1
"""The new number of pipelines differs from the original by less than 2 (Chameleon, section IV-A)."""
