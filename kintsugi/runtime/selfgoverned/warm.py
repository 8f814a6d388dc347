"""Imported by the fork server of workers that govern themselves: their governor, and the planner's compiled loops."""

import kintsugi.runtime.selfgoverned.governor  # noqa: F401
from planner.warmup import warm_up

warm_up()
