"""Micro-batches to pipelines: how many each takes so that all are through together."""

from collections.abc import Callable, Sequence


def trim(caps: Sequence[int], num_microbatches: int, seconds: Callable[[int, int], float]) -> tuple[int, ...]:
    """Reduce what each pipeline could take within a target time to `num_microbatches` in all, the slowest first.

    Args:
        caps: micro-batches that pipeline k can take, at least 1 each.
        num_microbatches: to be distributed, at most sum(caps).
        seconds: time of pipeline k with m micro-batches, not falling in m.

    Returns:
        Micro-batches of each pipeline, at least 1 each; ties go to the last pipeline.
    """
    counts = list(caps)
    for _ in range(sum(caps) - num_microbatches):
        slowest = max((k for k in range(len(counts)) if counts[k] > 1), key=lambda k: (seconds(k, counts[k]), k))
        counts[slowest] -= 1
    return tuple(counts)


def distribute(num_pipelines: int, num_microbatches: int, seconds: Callable[[int, int], float]) -> tuple[int, ...]:
    """Give every pipeline one micro-batch, then each further one to the pipeline that is through with it first.

    Greedy is exact here: times do not fall with the number of micro-batches. O(num_microbatches * num_pipelines).
    """
    counts = [1] * num_pipelines
    following = [seconds(k, 2) for k in range(num_pipelines)]
    for _ in range(num_microbatches - num_pipelines):
        first = min(range(num_pipelines), key=lambda k: (following[k], k))
        counts[first] += 1
        following[first] = seconds(first, counts[first] + 1)
    return tuple(counts)
