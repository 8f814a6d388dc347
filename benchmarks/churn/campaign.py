"""Which scale-outs are measured, and what is kept of them: one line of JSON each, so that a campaign can be gone on with."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.churn.baselines import Method
from benchmarks.churn.measure import Outcome, Setting, scale_out
from benchmarks.churn.overlays import Drawn, drawn, scaled, with_equal_links

MEBIBYTE = 2**20
MODEL_MEBIBYTES = {1.7: "LoRA", 178.0: "ResNet101", 468.0: "GPT-2", 528.0: "VGG11", 3050.0: "GPT-2 large"}
"""The papers' states."""
EQUAL_NODES, EQUAL_LINKS = 6, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a campaign measures."""

    mebibytes: tuple[float, ...]
    """Of the states."""
    num_nodes: tuple[int, ...]
    """That train when another joins."""
    num_events: int
    """Of every size and number of nodes."""
    num_equal_events: int
    """Joiners whose two links are alike, and only single source and greedy."""
    seed: int
    rate_ratio: float
    """Of what links carry to what was drawn."""
    compute_seconds: float
    gradient_bytes: int

    def setting(self, mebibytes: float) -> Setting:
        """Of the events with a state of that size."""
        return Setting(
            state_bytes=round(mebibytes * MEBIBYTE),
            shard_bytes=64 * 1024,
            compute_seconds=self.compute_seconds,
            gradient_bytes=self.gradient_bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One event."""

    part: str
    """`unequal` links as drawn, or `equal` ones."""
    num_nodes: int
    mebibytes: float
    seed: int

    @property
    def methods(self) -> tuple[Method, ...]:
        """Those that are compared in it."""
        return (Method.SINGLE, Method.GREEDY) if self.part == "equal" else tuple(Method)

    def overlay(self, rate_ratio: float) -> Drawn:
        """Whose nodes and links they are."""
        if self.part == "equal":
            plain = with_equal_links(drawn(self.num_nodes, self.seed, num_neighbors=EQUAL_LINKS))
        else:
            plain = drawn(self.num_nodes, self.seed)
        return scaled(plain, rate_ratio)


def cases(asked: Asked) -> Iterator[Case]:
    """All events: every size and number of nodes in turn, so that a campaign that is broken off has some of each."""
    for index in range(max(asked.num_events, asked.num_equal_events)):
        seed = asked.seed + index
        if index < asked.num_events:
            for mebibytes in asked.mebibytes:
                for num_nodes in asked.num_nodes:
                    yield Case(part="unequal", num_nodes=num_nodes, mebibytes=mebibytes, seed=seed)
        if index < asked.num_equal_events:
            size = min(asked.mebibytes, key=lambda mebibytes: abs(mebibytes - 178.0))
            yield Case(part="equal", num_nodes=EQUAL_NODES, mebibytes=size, seed=seed)


@dataclass(frozen=True, slots=True)
class Record:
    """An event, and what came of it under every method."""

    case: Case
    outcomes: tuple[Outcome, ...]

    def of(self, method: Method) -> Outcome:
        """The outcome of one method."""
        return next(outcome for outcome in self.outcomes if outcome.method is method)


def run(asked: Asked, kept: Path | None, console: Console) -> list[Record]:
    """Measure what is not in the file `kept` yet, and put it there; all that was asked for."""
    known = {record.case: record for record in read(kept)} if kept is not None and kept.exists() else {}
    records = []
    for case in cases(asked):
        record = known.get(case)
        if record is None:
            console.print(f"{case.mebibytes:g} MiB to a joiner of {case.num_nodes} nodes, {case.part} links, seed {case.seed}")
            record = Record(
                case, tuple(scale_out(case.overlay(asked.rate_ratio), asked.setting(case.mebibytes), case.methods, case.seed))
            )
            if kept is not None:
                _append(kept, record)
        records.append(record)
    return records


def read(path: Path) -> list[Record]:
    """What earlier campaigns kept."""
    return [_record(json.loads(line)) for line in path.read_text().splitlines()]


def _record(raw: dict[str, Any]) -> Record:
    outcomes = (Outcome(**{**outcome, "method": Method(outcome["method"])}) for outcome in raw["outcomes"])
    return Record(Case(**raw["case"]), tuple(outcomes))


def _append(path: Path, record: Record) -> None:
    with path.open("a") as file:
        file.write(json.dumps({"case": asdict(record.case), "outcomes": [asdict(outcome) for outcome in record.outcomes]}) + "\n")


def by(records: Sequence[Record], part: str) -> list[Record]:
    """Those of one part."""
    return [record for record in records if record.case.part == part]
