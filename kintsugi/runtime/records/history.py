"""Which attempt every step of a run was committed in for good, as its journals tell: the run without what was undone."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kintsugi.runtime.records.journal import Record, Source

AttemptKey = tuple[int, int]
"""Life of the agent, and number of the attempt within it: the order in which things happened."""


@dataclass(slots=True)
class AttemptRecord:
    """What all workers wrote about one attempt. Lists are in the order of the lines."""

    key: AttemptKey
    resumed: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """By journal."""
    passed: dict[int, dict[str, list[Mapping[str, Any]]]] = field(default_factory=dict)
    """By step and journal."""
    committed: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict)
    """By journal."""
    steps: dict[int, dict[str, Mapping[str, Any]]] = field(default_factory=dict)
    """The same lines by step and journal."""

    def line_of(self, step: int) -> Mapping[str, Any]:
        """What one of those that committed a step wrote."""
        return next(iter(self.steps[step].values()))


@dataclass(frozen=True, slots=True)
class Undone:
    """Steps that were committed, and trained again after the job went back."""

    first: int
    last: int
    attempt: AttemptKey
    """That went back."""
    source: Source


@dataclass(slots=True)
class History:
    """What is left of all attempts."""

    attempts: list[AttemptRecord]
    held: dict[int, AttemptRecord] = field(default_factory=dict)
    """The attempt in which each step was committed for good."""
    undone: list[Undone] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def losses(self) -> dict[int, float]:
        """Mean loss of every step that holds."""
        return {step: float(attempt.line_of(step)["loss"]) for step, attempt in sorted(self.held.items())}

    @property
    def microbatches(self) -> dict[int, tuple[int, ...]]:
        """How often each micro-batch counted, in every step that holds."""
        return {step: tuple(attempt.line_of(step)["microbatches"]) for step, attempt in sorted(self.held.items())}


def history_of(records: Iterable[Record]) -> History:
    """Follow all attempts in their order, and note everything that does not fit.

    An attempt begins at the step that its workers say. What was committed from there on before is undone: by going back
    to a checkpoint or to the start, or because those who had applied it died with it.
    """
    history = History(_attempts(records))
    for attempt in history.attempts:
        _check_workers(attempt, history)
        if attempt.resumed:
            _go_back(attempt, history)
        for step in sorted(attempt.steps):
            _hold(step, attempt, history)
    return history


def _attempts(records: Iterable[Record]) -> list[AttemptRecord]:
    attempts: dict[AttemptKey, AttemptRecord] = {}
    for record in records:
        for line in record.lines:
            key = (record.life, line["attempt"])
            attempt = attempts.setdefault(key, AttemptRecord(key))
            if line["kind"] == "resume":
                attempt.resumed[record.name] = line
            elif line["kind"] == "step":
                attempt.passed.setdefault(line["step"], {}).setdefault(record.name, []).append(line)
            elif line["kind"] == "commit":
                attempt.committed.setdefault(record.name, []).append(line)
                attempt.steps.setdefault(line["step"], {})[record.name] = line
    return [attempts[key] for key in sorted(attempts)]


def _check_workers(attempt: AttemptRecord, history: History) -> None:
    """All begin at one step, commit one after the other from there, and tell the same losses."""
    where = _named(attempt.key)
    if len({(line["step"], line["source"]) for line in attempt.resumed.values()}) > 1:
        history.problems.append(f"{where}: the workers began at different steps or from different states")
    if attempt.committed and (expected := {line["world_size"] for line in attempt.resumed.values()}) != {len(attempt.resumed)}:
        history.problems.append(f"{where}: journals of {len(attempt.resumed)} workers where {sorted(expected)} took part")
    losses: dict[int, str] = {}  # as text, for NaN is equal to nothing
    for name, lines in attempt.committed.items():
        if name not in attempt.resumed:
            history.problems.append(f"{where}: {name} committed steps and did not say where it began")
            continue
        expected = attempt.resumed[name]["step"]
        for line in lines:
            if line["step"] != expected:
                what = "twice" if line["step"] < expected else f"and skipped step {expected}"
                history.problems.append(f"{where}: {name} committed step {line['step']} {what}")
            expected = line["step"] + 1
            if losses.setdefault(line["step"], repr(line["loss"])) != repr(line["loss"]):
                history.problems.append(f"{where}: {name} has another loss of step {line['step']} than others")


def _go_back(attempt: AttemptRecord, history: History) -> None:
    line = next(iter(attempt.resumed.values()))
    start, source = line["step"], Source(line["source"])
    if start > len(history.held):
        history.problems.append(f"{_named(attempt.key)}: began at step {start} where {len(history.held)} steps were committed")
    undone = sorted(step for step in history.held if step >= start)
    if not undone:
        return
    history.undone.append(Undone(undone[0], undone[-1], attempt.key, source))
    for step in undone:
        before = history.held.pop(step)
        stayed = before.steps[step].keys() & attempt.resumed.keys() if source is Source.MEMORY else ()
        history.problems.extend(
            f"{_named(attempt.key)}: step {step} was committed twice: {name} had applied it and trained it again"
            for name in sorted(stayed)
        )


def _hold(step: int, attempt: AttemptRecord, history: History) -> None:
    if step in history.held:
        other = _named(history.held[step].key)
        history.problems.append(f"{_named(attempt.key)}: step {step} was committed twice, before in {other}")
    elif step > len(history.held):
        history.problems.append(f"{_named(attempt.key)}: step {step} was committed where step {len(history.held)} was skipped")
    history.held[step] = attempt


def _named(key: Sequence[int]) -> str:
    return f"life {key[0]}, attempt {key[1]}"
