"""Imported by the fork server of workers that govern themselves: the planner's compiled loops, read once for all of them."""

from planner.warmup import warm_up

warm_up()
