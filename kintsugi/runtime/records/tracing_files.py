"""What workers recorded of their actions, read back onto one clock; nothing here needs torch.

Workers of one host share a clock. Between hosts the offset is estimated from the messages that went both ways, as NTP does:
a message takes at least as long as its link, so half the difference between the fastest ways there and back is what one
clock is ahead of the other, to within half of what the two links differ by. Hosts without messages both ways are laid
together by their wall clocks.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from estimator.program import RECEIVES, SENDS, parse_action
from estimator.replay import Timing
from estimator.trace import TracedStep, TraceGroup, later, message_key
from kintsugi.core import codec
from kintsugi.core.cluster import Cluster
from kintsugi.core.errors import InvalidInputError
from kintsugi.core.plan import Plan
from kintsugi.core.profile import Profile
from kintsugi.runtime.disk import require_folder
from kintsugi.runtime.records.tracing import JOB, SUFFIX, TRACES, Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """The recorded steps of a run, by the generation of their plan; all times in seconds since the first recorded action."""

    profile: Profile
    cluster: Cluster
    plans: Mapping[int, Plan]
    steps: Mapping[int, tuple[TracedStep, ...]]
    alignment: Mapping[str, str]
    """How each host's clock was laid onto the first one's: `same`, `messages` or `wall clock`."""

    def groups(self) -> tuple[TraceGroup, ...]:
        """One group per generation, in order."""
        return tuple(
            TraceGroup(title=f"measured, generation {generation}", plan=self.plans[generation], steps=steps)
            for generation, steps in sorted(self.steps.items())
        )


@dataclass(slots=True)
class _Recorded:
    """Everything of a folder, each worker on its own clock."""

    plans: dict[int, Plan] = field(default_factory=dict)
    clocks: dict[str, Clock] = field(default_factory=dict)
    steps: dict[tuple[int, int], dict[str, tuple[Timing, ...]]] = field(default_factory=lambda: defaultdict(dict))


@dataclass(frozen=True, slots=True)
class _Offset:
    """Seconds to add to a host's clock, and where they come from."""

    seconds: float
    source: str


def read_run(folder: Path) -> MeasuredRun:
    """What the workers of a run recorded under `folder`.

    Raises:
        InvalidInputError: there is no such folder, nothing was recorded there, or a file is not what a worker wrote.
    """
    require_folder(folder, "run")
    home = folder / TRACES
    paths = sorted(home.glob(f"*{SUFFIX}"))
    if not paths or not (home / JOB).exists():
        raise InvalidInputError("holds no recorded actions; train with trace=... first", field="run", value=str(folder))
    recorded = _Recorded()
    for path in paths:
        _take(recorded, path)
    if unknown := {generation for generation, _ in recorded.steps} - recorded.plans.keys():
        raise InvalidInputError(f"the plan of generation {min(unknown)} is not among its files", field="run", value=str(folder))
    job = codec.load(dict[str, Any], home / JOB)
    offsets = host_offsets(recorded.clocks, recorded.steps)
    return MeasuredRun(
        profile=codec.decode(Profile, job["profile"], field="profile"),
        cluster=codec.decode(Cluster, job["cluster"], field="cluster"),
        plans=recorded.plans,
        steps=_aligned(recorded, {host: offset.seconds for host, offset in offsets.items()}),
        alignment={host: offset.source for host, offset in offsets.items()},
    )


def _take(recorded: _Recorded, path: Path) -> None:
    """Add one file; a last line without an end was cut off by the death of its writer."""
    worker = ""
    for number, text in enumerate(path.read_text().split("\n")[:-1], 1):
        try:
            line = json.loads(text)
            match line["kind"]:
                case "begin":
                    worker = line["worker"]
                    recorded.clocks[worker] = Clock(**line["clock"])
                case "plan":
                    plan = codec.decode(Plan, line["plan"])
                    recorded.plans[plan.generation] = plan
                case "step":
                    timings = tuple(Timing(worker, parse_action(name), begin, end) for name, begin, end in line["actions"])
                    recorded.steps[line["generation"], line["step"]][worker] = timings
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidInputError(f"line {number} is not what a worker writes: {error}", field="run", value=str(path)) from error


def host_offsets(
    clocks: Mapping[str, Clock], steps: Mapping[tuple[int, int], Mapping[str, Iterable[Timing]]]
) -> dict[str, "_Offset"]:
    """What to add to each host's clock to read the first one's, by host.

    Args:
        clocks: of every worker.
        steps: timings of every worker, each on its own clock, by generation and step.
    """
    by_host = {clock.host: clock for clock in clocks.values()}
    first = next(iter(by_host))
    offsets = {first: _Offset(0.0, "same")}
    shortest = _shortest_ways(clocks, steps)
    reached = [first]
    for known in reached:
        for host in by_host.keys() - offsets.keys():
            there, back = shortest.get((known, host)), shortest.get((host, known))
            if there is not None and back is not None:
                offsets[host] = _Offset(offsets[known].seconds - (there - back) / 2, "messages")
                reached.append(host)
    for host, clock in by_host.items():
        ahead = (clock.unix_seconds - clock.monotonic_seconds) - (by_host[first].unix_seconds - by_host[first].monotonic_seconds)
        offsets.setdefault(host, _Offset(ahead, "wall clock"))
    return offsets


def _shortest_ways(
    clocks: Mapping[str, Clock], steps: Mapping[tuple[int, int], Mapping[str, Iterable[Timing]]]
) -> dict[tuple[str, str], float]:
    """From the start of a send to the end of its receive, by the clocks of their hosts: the least, by pair of hosts."""
    result: dict[tuple[str, str], float] = {}
    for workers in steps.values():
        sent = {message_key(timing): timing.start_seconds for timing in _messages(workers) if timing.action.kind in SENDS}
        for timing in _messages(workers):
            if timing.action.kind in RECEIVES and message_key(timing) in sent:
                pair = clocks[timing.action.peer].host, clocks[timing.worker].host
                seconds = timing.end_seconds - sent[message_key(timing)]
                result[pair] = min(seconds, result.get(pair, seconds))
    return result


def _messages(workers: Mapping[str, Iterable[Timing]]) -> Iterator[Timing]:
    return (timing for timings in workers.values() for timing in timings if timing.action.peer)


def _aligned(recorded: _Recorded, offsets: Mapping[str, float]) -> dict[int, tuple[TracedStep, ...]]:
    """Every step on the first host's clock, from its first recorded action on."""
    ahead = {worker: offsets[clock.host] for worker, clock in recorded.clocks.items()}
    begin = min(
        (t.start_seconds + ahead[t.worker] for workers in recorded.steps.values() for own in workers.values() for t in own),
        default=0.0,
    )
    result: dict[int, list[TracedStep]] = defaultdict(list)
    for (generation, step), workers in sorted(recorded.steps.items()):
        timings = {worker: tuple(later(t, ahead[worker] - begin) for t in own) for worker, own in workers.items()}
        result[generation].append(TracedStep(timings=timings, step=step))
    return {generation: tuple(steps) for generation, steps in result.items()}
