"""The estimator against real runs and against what is published."""
