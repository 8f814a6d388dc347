"""Which scale-outs are measured, and what is kept of them: one line of JSON each, so that a campaign can be gone on with."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter
from rich.console import Console

from benchmarks.churn.baselines import Method
from benchmarks.churn.measure import Outcome, Setting, scale_out
from benchmarks.churn.overlays import Drawn, drawn, scaled, with_equal_links
from benchmarks.churn.product import ProductEvent, product
from benchmarks.running import cut_torn_line, whole_lines

MEBIBYTE = 2**20
MODEL_MEBIBYTES = {1.7: "LoRA", 178.0: "ResNet101", 468.0: "GPT-2", 528.0: "VGG11", 3050.0: "GPT-2 large"}
"""The papers' states."""
MIDDLE_MEBIBYTES = 178.0
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
    num_product_events: int
    """Of the product itself."""
    num_product_nodes: int
    seed: int
    rate_ratio: float
    """Of what links carry to what was drawn."""
    compute_seconds: float
    gradient_bytes: int

    @property
    def middle_mebibytes(self) -> float:
        """The size nearest to that of which most events are measured."""
        return min(self.mebibytes, key=lambda mebibytes: abs(mebibytes - MIDDLE_MEBIBYTES))

    def setting(self, mebibytes: float) -> Setting:
        """Of the events with a state of that size."""
        return Setting(
            state_bytes=round(mebibytes * MEBIBYTE),
            shard_bytes=64 * 1024,
            compute_seconds=self.compute_seconds,
            gradient_bytes=self.gradient_bytes,
            rate_ratio=self.rate_ratio,
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
            yield Case(part="equal", num_nodes=EQUAL_NODES, mebibytes=asked.middle_mebibytes, seed=seed)


@dataclass(frozen=True, slots=True)
class Record:
    """An event, and what came of it under every method."""

    case: Case
    outcomes: tuple[Outcome, ...]
    setting: Setting | None = None
    """In which they were measured; null: nobody noted it."""

    def of(self, method: Method) -> Outcome:
        """The outcome of one method."""
        return next(outcome for outcome in self.outcomes if outcome.method is method)


@dataclass(frozen=True, slots=True)
class Results:
    """All that was measured."""

    records: tuple[Record, ...]
    product: tuple[ProductEvent, ...]


def run(asked: Asked, kept: Path | None, console: Console) -> Results:
    """Measure what is not in the file `kept` yet, and put it there; all that was asked for."""
    if kept is not None:
        cut_torn_line(kept)
    known = read(kept) if kept is not None else Results((), ())
    return Results(_scale_outs(asked, known, kept, console), _product_events(asked, known, kept, console))


def _scale_outs(asked: Asked, known: Results, kept: Path | None, console: Console) -> tuple[Record, ...]:
    by_case = {record.case: record for record in known.records if record.setting == asked.setting(record.case.mebibytes)}
    for case in cases(asked):
        if case not in by_case:
            console.print(f"{case.mebibytes:g} MiB to a joiner of {case.num_nodes} nodes, {case.part} links, seed {case.seed}")
            setting = asked.setting(case.mebibytes)
            outcomes = scale_out(case.overlay(asked.rate_ratio), setting, case.methods, case.seed)
            by_case[case] = Record(case, tuple(outcomes), setting)
            _append(kept, by_case[case])
    return tuple(by_case[case] for case in cases(asked))


def _product_events(asked: Asked, known: Results, kept: Path | None, console: Console) -> tuple[ProductEvent, ...]:
    setting, number = asked.setting(asked.middle_mebibytes), asked.num_product_nodes
    events = {e.seed: e for e in known.product if e.num_active == number and e.is_of(setting)}
    seeds = range(asked.seed, asked.seed + asked.num_product_events)
    missing = [seed for seed in seeds if seed not in events]
    if missing:
        with product(number, setting, asked.seed, console) as job:
            for seed in missing:
                console.print(f"the product, {number} workers, seed {seed}")
                events[seed] = job.event(seed)
                _append(kept, events[seed])
    return tuple(events[seed] for seed in seeds)


def read(path: Path) -> Results:
    """What earlier campaigns kept."""
    lines = [json.loads(line) for line in whole_lines(path)]
    records = TypeAdapter(tuple[Record, ...]).validate_python([line for line in lines if "case" in line])
    return Results(records, TypeAdapter(tuple[ProductEvent, ...]).validate_python([line for line in lines if "joins" in line]))


def _append(path: Path | None, found: Record | ProductEvent) -> None:
    if path is not None:
        with path.open("a") as file:
            file.write(json.dumps(asdict(found)) + "\n")


def by(records: Sequence[Record], part: str) -> list[Record]:
    """Those of one part."""
    return [record for record in records if record.case.part == part]
