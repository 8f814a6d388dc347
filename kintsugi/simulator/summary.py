"""What many runs say together: means with confidence intervals, ratios and regrets."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from kintsugi.reporting import intervals
from kintsugi.reporting.intervals import Interval
from kintsugi.simulator.ledger import Account
from kintsugi.simulator.rows import Row, Value
from kintsugi.simulator.sweep import Result


def summarised(results: Iterable[Result]) -> tuple[Row, ...]:
    """One row per policy and combination, in the order of the results."""
    groups: dict[tuple[tuple[tuple[str, Value], ...], str], list[Result]] = defaultdict(list)
    for result in results:
        groups[result.values, result.outcome.policy].append(result)
    return tuple(_row(dict(values), policy, group) for (values, policy), group in groups.items())


def _row(values: Mapping[str, Value], policy: str, group: Sequence[Result]) -> Row:
    outcomes = [result.outcome for result in group]
    return Row(
        values=values,
        policy=policy,
        num_runs=len(outcomes),
        samples_per_second=Interval.of([outcome.samples_per_second for outcome in outcomes]),
        num_transitions=fmean(outcome.num_transitions for outcome in outcomes),
        num_rollbacks=fmean(outcome.num_rollbacks for outcome in outcomes),
        shares={
            account.value: fmean(outcome.seconds[account.value] / outcome.duration_seconds for outcome in outcomes)
            for account in Account
        },
        stopped_because=next((outcome.stopped_because for outcome in outcomes if outcome.stopped_because is not None), None),
    )


def by_seed(results: Iterable[Result], policy: str) -> dict[int, float]:
    """Samples per second of a policy, by seed."""
    return {r.outcome.seed: r.outcome.samples_per_second for r in results if r.outcome.policy == policy}


def ratio(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Interval:
    """How many times as much we train over all seeds: the ratio of the means."""
    return intervals.ratio([[ours[seed] for seed in ours]], [[theirs[seed] for seed in ours]])


def regrets(ours: Mapping[int, float], others: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """By what share the best of the others trained more than we did, by seed; 0 where none did."""
    return {seed: max(0.0, 1 - own / max(other[seed] for other in others)) for seed, own in ours.items()}
