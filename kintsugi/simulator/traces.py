"""Measured availability: `time_ms,add|remove,node` and `date, time, nodes` files, and a synthetic trace of like statistics."""

import csv
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import groupby, pairwise
from pathlib import Path

from kintsugi.core.checks import LONGEST_NAME
from kintsugi.core.cluster import MOST_WORKERS
from kintsugi.core.errors import InvalidInputError, cause_of
from kintsugi.simulator.faults import HOST_PREFIX, Incident

MILLISECONDS = 1000.0

LONGEST_NODE = LONGEST_NAME - len(HOST_PREFIX)
"""Characters of a node's name: its host's is longer."""

Row = tuple[int, Sequence[str]]
"""Number of a line in its file, and its cells."""


def shipped() -> "tuple[Incident, ...]":
    """The trace that comes with Kintsugi: drawn so that its statistics are like those of measured spot fleets.

    Published traces of the field (Bamboo's, of 24 to 64 nodes over half a day to a day) lose nodes every quarter of an
    hour, mostly one or two at once, sometimes up to five, and get them back within tens of minutes.
    """
    bulk = (1,) * 31 + (2,) * 12 + (3, 3, 4, 4, 5)
    return synthetic(num_nodes=24, bulk=bulk, seconds_between=800.0, wait_seconds=900.0, duration_seconds=43_200.0, seed=0)


def read(path: Path, *, notice_seconds: float = 0.0, seed: int = 0) -> tuple[Incident, ...]:
    """All arrivals and preemptions of a trace, its first moment at 0 s.

    Args:
        path: of `time_ms,add|remove,node` lines, or of `date, time, nodes` lines with sampled numbers of live nodes.
        notice_seconds: how long before it happens a preemption is announced.
        seed: decides which nodes go where the trace tells their number only.

    Raises:
        InvalidInputError: the file cannot be read, or a line is neither; names the line.
    """
    rows = _lines(path)
    try:
        incidents = from_events(rows) if _are_events(rows) else from_counts(rows, seed)
    except InvalidInputError as error:
        raise InvalidInputError(f"{error.message} (in {path})", field=error.field, value=error.value) from error
    return tuple(
        Incident(at_seconds=i.at_seconds, lost=i.lost, joined=i.joined, notice_seconds=notice_seconds if i.lost else 0.0)
        for i in incidents
    )


def is_by_chance(path: Path) -> bool:
    """Whether the seed decides anything: a trace tells how many nodes there are, not which.

    Raises:
        InvalidInputError: the file cannot be read.
    """
    return not _are_events(_lines(path))


def _lines(path: Path) -> list[Row]:
    """All lines that are not blank, one at least."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(_rows(file))
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidInputError(f"is no text of lines: {error}", field="trace", value=str(path)) from error
    except (OSError, ValueError) as error:  # of which the latter is how names with a zero byte are refused
        raise InvalidInputError(f"cannot be read: {cause_of(error)}", field="trace", value=str(path)) from error
    if not rows:
        raise InvalidInputError("has no lines", field="trace", value=str(path))
    return rows


def _are_events(rows: Sequence[Row]) -> bool:
    first = rows[0][1]
    return len(first) == 3 and first[1] in ("add", "remove")


def _rows(file: Iterable[str]) -> Iterator[Row]:
    """Lines that are not blank."""
    reader = csv.reader(file)
    for cells in reader:
        row = [cell.strip() for cell in cells]
        if any(row):
            yield reader.line_num, row


def from_events(rows: Sequence[Row]) -> tuple[Incident, ...]:
    """Incidents of `time_ms,add|remove,node` lines; those of one moment are one.

    A node that goes and comes in one moment is lost and joins: the one that comes has no state.
    """
    parsed = [_event(number, row) for number, row in rows]
    for (number, _), (before, now) in zip(rows[1:], pairwise(moment for moment, _, _ in parsed), strict=True):
        if now < before:
            raise InvalidInputError("goes back in time", field=f"trace line {number}", value=now)
    first, live, result = parsed[0][0], set[str](), []
    for now, group in groupby(parsed, key=lambda event: event[0]):
        started, gone = frozenset(live), set[str]()
        for _, kind, node in group:
            _apply(live, kind, node, now)
            if kind == "remove":
                gone.add(node)
        lost = started & gone
        result.append(
            Incident(
                at_seconds=(now - first) / MILLISECONDS,
                lost=tuple(sorted(lost)),
                joined=tuple(sorted(live - (started - lost))),
            )
        )
    return tuple(incident for incident in result if incident.lost or incident.joined)


def _event(number: int, row: Sequence[str]) -> tuple[float, str, str]:
    try:
        moment, kind, node = row
        is_event = kind in ("add", "remove") and node != "" and math.isfinite(milliseconds := float(moment))
    except ValueError:
        is_event = False
    if not is_event:
        raise InvalidInputError("is no `time_ms,add|remove,node`", field=f"trace line {number}", value=",".join(row)[:200])
    if len(node) > LONGEST_NODE or not node.isprintable():
        message = f"must name a node by at most {LONGEST_NODE} printable characters"
        raise InvalidInputError(message, field=f"trace line {number}", value=node[:200])
    return milliseconds, kind, node


def _apply(live: set[str], kind: str, node: str, now: float) -> None:
    if (kind == "add") == (node in live):
        verb = "comes although it is there" if kind == "add" else "goes although it is not there"
        raise InvalidInputError(f"{verb}, at {now:g} ms", field="trace", value=node)
    (live.add if kind == "add" else live.remove)(node)
    _require_credible(len(live), "trace")


def _require_credible(count: int, field: str) -> None:
    if count > MOST_WORKERS:
        raise InvalidInputError(f"has more than {MOST_WORKERS:,} nodes at once, which is not credible", field=field, value=count)


def from_counts(rows: Sequence[Row], seed: int) -> tuple[Incident, ...]:
    """Incidents of `date, time, nodes` lines: the fewest changes that explain the numbers; chance says who goes."""
    parsed = [_sample(number, row, is_first=index == 0) for index, (number, row) in enumerate(rows)]
    _require_order([(number, moment) for (number, _), (moment, _) in zip(rows, parsed, strict=True)])
    chance, first = random.Random(f"{seed}/counts"), parsed[0][0]
    live: list[str] = []
    born = 0
    result: list[Incident] = []
    for moment, count in parsed:
        lost = tuple(sorted(chance.sample(live, len(live) - count))) if count < len(live) else ()
        joined = tuple(f"node{born + number}" for number in range(count - len(live)))
        born += len(joined)
        live = [node for node in live if node not in lost] + list(joined)
        if lost or joined:
            result.append(Incident(at_seconds=(moment - first).total_seconds(), lost=lost, joined=joined))
    return tuple(result)


def _require_order(moments: Sequence[tuple[int, datetime]]) -> None:
    """Refuse a moment before the last one, or one that cannot be told from it: only one of them says how far from UTC it is."""
    for (_, before), (number, now) in pairwise(moments):
        if (before.tzinfo is None) != (now.tzinfo is None):
            message = "must say how far from UTC it is on every line or on none"
            raise InvalidInputError(message, field=f"trace line {number}", value=now.isoformat())
        if now < before:
            raise InvalidInputError("goes back in time", field=f"trace line {number}", value=now.isoformat())


def _sample(number: int, row: Sequence[str], *, is_first: bool) -> tuple[datetime, int]:
    try:
        date, time, nodes = row
        moment, count = datetime.fromisoformat(f"{date}T{time}"), int(nodes)
    except ValueError:
        count = -1
    if count < 0:
        others = " and no `time_ms,add|remove,node`" if is_first else ""
        raise InvalidInputError(f"is no `date, time, nodes`{others}", field=f"trace line {number}", value=",".join(row)[:200])
    _require_credible(count, f"trace line {number}")
    return moment, count


def synthetic(
    *, num_nodes: int, bulk: Sequence[int], seconds_between: float, wait_seconds: float, duration_seconds: float, seed: int
) -> tuple[Incident, ...]:
    """A fleet that asks for `num_nodes`, loses nodes in bulk, and gets new ones after a while.

    Args:
        num_nodes: that the fleet asks for; all are there at 0 s.
        bulk: sizes of preemptions, drawn evenly.
        seconds_between: mean time between preemptions.
        wait_seconds: mean time until a node is replaced.
        duration_seconds: of the trace.
        seed: of all chance.
    """
    chance, born, now = random.Random(f"{seed}/spot"), num_nodes, 0.0
    live = {f"node{number}": 0.0 for number in range(num_nodes)}
    events = [Incident(at_seconds=0.0, joined=tuple(live))]
    while (now := round(now + chance.expovariate(1 / seconds_between), 3)) < duration_seconds:
        there = [node for node, since in live.items() if since < now]
        lost = tuple(chance.sample(there, min(len(there) - 1, chance.choice(bulk))))
        events.append(Incident(at_seconds=now, lost=lost))
        for node in lost:
            del live[node]
            born += 1
            live[f"node{born}"] = back = round(now + chance.expovariate(1 / wait_seconds), 3)
            events.append(Incident(at_seconds=back, joined=(f"node{born}",)))
    return tuple(sorted((e for e in events if e.at_seconds < duration_seconds), key=lambda e: e.at_seconds))


def written(incidents: Iterable[Incident]) -> str:
    """Incidents as `time_ms,add|remove,node` lines."""
    lines = []
    for incident in incidents:
        moment = round(incident.at_seconds * MILLISECONDS)
        lines += [f"{moment},remove,{node}" for node in incident.lost] + [f"{moment},add,{node}" for node in incident.joined]
    return "\n".join(lines) + "\n"
