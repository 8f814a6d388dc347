"""Orders of passes for micro-batches whose ways share workers, as in rerouted pipelines: event-driven list scheduling."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from estimator.schedule import Pass
from estimator.simulation import DESK, KEY, OP, PLACED, Records, simulate
from kintsugi.core.plan import Schedule

Row = tuple[tuple[float, ...], int, tuple[int, int, int]]
"""Times, delay and bytes of a stage of some way; its limit; and what that counts."""

KINDS = (Pass.FORWARD, Pass.BACKWARD, Pass.BACKWARD_INPUT, Pass.BACKWARD_WEIGHT)
"""By the numbers that the simulation has for them."""


@dataclass(frozen=True, slots=True)
class Hop:
    """One stage of one micro-batch's way, on the worker that computes it."""

    worker: str
    forward_seconds: float
    backward_input_seconds: float
    backward_weight_seconds: float
    delay_seconds: float
    """Link delay between this stage and the next, each way; 0 after the last."""
    activation_bytes: int = 0
    """Held from the forward pass to the last backward pass."""
    limit: int | None = None
    """Most micro-batches between forward and backward pass; None for as many as there are stages to go."""


@dataclass(frozen=True, slots=True)
class Journey:
    """A micro-batch's way through all stages; `turn` is its place in its own pipeline."""

    microbatch: int
    pipeline: int
    turn: int
    hops: tuple[Hop, ...]


class PlacedPass(NamedTuple):
    """A pass in a worker's order; `microbatch` counts over all pipelines."""

    kind: Pass
    microbatch: int
    pipeline: int
    stage: int


@dataclass(frozen=True, eq=False)
class WorkerSchedule:
    """What one worker computes, in order, and what that makes it hold."""

    end_seconds: float
    """End of the last pass."""
    busy_seconds: float
    num_in_flight: int
    """Most micro-batches whose activations are held at once."""
    activation_bytes: int
    """Most bytes of activations held at once."""
    _journeys: Sequence[Journey]
    _first_op: npt.NDArray[np.int64]
    """Where each journey's passes begin, shape [journeys + 1]."""
    _placed: Records

    @cached_property
    def last_seconds(self) -> dict[tuple[int, int], float]:
        """End of the last pass through each (pipeline, stage) that the worker computes."""
        indices = np.searchsorted(self._first_op, self._placed["op"], side="right") - 1
        stages = (self._placed["op"] - self._first_op[indices]).tolist()
        places = ((self._journeys[index].pipeline, stage) for index, stage in zip(indices.tolist(), stages, strict=True))
        return dict(zip(places, self._placed["end"].tolist(), strict=True))

    @cached_property
    def passes(self) -> tuple[PlacedPass, ...]:
        """All passes in order."""
        ops = self._placed["op"]
        indices = np.searchsorted(self._first_op, ops, side="right") - 1
        places = zip(self._placed["kind"].tolist(), indices.tolist(), (ops - self._first_op[indices]).tolist(), strict=True)
        return tuple(
            PlacedPass(KINDS[kind], self._journeys[index].microbatch, self._journeys[index].pipeline, stage)
            for kind, index, stage in places
        )


class ListScheduler:
    """Event-driven list scheduling of micro-batches whose ways share workers (rerouted pipelines).

    The order is read off one simulated execution, so it admits an execution. What a worker serves has a limit on the
    micro-batches between forward and backward pass: its stage's own or its number of stages to go, for each pipeline apart
    or, where memory is tight, shared by all pipelines, so that rerouting needs no more activation memory than the plan it
    departs from. Either way what has as many stages to go drains once what has fewer does, and last stages always drain.

    With a split backward pass (ReCycle; Gandhi et al., SOSP 2024) input parts are scheduled as backward passes are, and
    weight parts wait until their worker has nothing else to do, or no memory left for another forward pass; first stages,
    for whose input part nobody waits, pass backward in one. O(n log n) for n passes.
    """

    def __init__(
        self,
        journeys: Sequence[Journey],
        schedule: Schedule,
        *,
        is_limit_shared: bool,
        budget_bytes: Mapping[str, int] | None = None,
    ) -> None:
        """Prepare; `run` schedules.

        Args:
            journeys: of all micro-batches that share workers.
            schedule: sets the limits.
            is_limit_shared: whether the pipelines that a worker serves share its limits.
            budget_bytes: of activations, by worker; weight parts are not put off beyond it. None is no limit.
        """
        self._journeys = journeys
        self._is_limited = schedule is not Schedule.GPIPE
        self._is_limit_shared = is_limit_shared
        self._workers = sorted({hop.worker for hops in {id(j.hops): j.hops for j in journeys}.values() for hop in hops})
        budgets: Mapping[str, float] = budget_bytes or {}
        self._budgets = np.array([budgets.get(worker, np.inf) for worker in self._workers], dtype=np.float64)

    def run(self, *, is_split: bool = False) -> dict[str, WorkerSchedule]:
        """Every worker's schedule, with whole backward passes or split ones; every journey is complete."""
        ops, keys, desks = (records.copy() for records in self._records)
        placed = np.zeros(3 * len(ops), PLACED)
        num_finished = simulate(ops, keys, desks, placed, is_split)
        assert num_finished == len(ops), "some journey is incomplete"
        columns = (desks[name].tolist() for name in ("end", "busy", "most", "most_bytes", "first_placed", "num_placed"))
        return {
            worker: WorkerSchedule(
                end_seconds=end,
                busy_seconds=busy,
                num_in_flight=most,
                activation_bytes=most_bytes,
                _journeys=self._journeys,
                _first_op=self._first_op,
                _placed=placed[first : first + count],
            )
            for worker, end, busy, most, most_bytes, first, count in zip(self._workers, *columns, strict=True)
        }

    @cached_property
    def _lengths(self) -> Sequence[int]:
        return [len(journey.hops) for journey in self._journeys]

    @cached_property
    def _first_op(self) -> npt.NDArray[np.int64]:
        return np.concatenate(([0], np.cumsum(self._lengths)))

    @cached_property
    def _records(self) -> tuple[Records, Records, Records]:
        """Passes, limits and workers for the simulation; journeys over the same hops are read once."""
        first_op, lengths = self._first_op, self._lengths
        row_of, rows = self._rows()
        stage = np.arange(first_op[-1]) - np.repeat(first_op[:-1], lengths)
        row = np.repeat([row_of[id(journey.hops), journey.pipeline] for journey in self._journeys], lengths) + stage
        turn, microbatch = (np.repeat([getattr(j, name) for j in self._journeys], lengths) for name in ("turn", "microbatch"))
        workers, limits, key_of = self._keys(rows)
        ops, keys, desks = np.zeros(len(row), OP), np.zeros(len(limits), KEY), np.zeros(len(self._workers), DESK)
        for name, values in zip(
            ("forward", "input", "weight", "delay", "num_bytes"), zip(*(own for own, _, _ in rows), strict=True), strict=True
        ):
            ops[name] = np.array(values)[row]
        ops["key"], ops["worker"] = key_of[row], workers[key_of[row]]
        ops["is_first"], ops["is_last"] = stage == 0, stage == np.repeat(lengths, lengths) - 1
        ops["rank"][np.lexsort((stage, microbatch, turn))] = np.arange(len(ops))
        keys["limit"], keys["head"] = limits, _starts(ops["key"], len(keys))
        keys["tail"] = keys["head"]
        everyone = np.arange(len(desks))
        desks["first_key"], desks["stop_key"] = np.searchsorted(workers, everyone), np.searchsorted(workers, everyone, side="right")
        places = _starts(ops["worker"], len(desks))
        for name in ("backward_head", "backward_tail", "weight_head", "weight_tail"):
            desks[name] = places
        desks["first_placed"], desks["budget"] = 3 * places, self._budgets
        return ops, keys, desks

    def _rows(self) -> tuple[dict[tuple[int, int], int], list[Row]]:
        """Where the rows of each way begin; per row times, delay and bytes, its limit, and what that counts.

        A limit counts the micro-batches of a worker, with so many stages to go, of a pipeline (or -1 for all).
        """
        index_of = {worker: index for index, worker in enumerate(self._workers)}
        row_of: dict[tuple[int, int], int] = {}
        rows: list[Row] = []
        for journey in self._journeys:
            if (id(journey.hops), journey.pipeline) in row_of:
                continue
            row_of[id(journey.hops), journey.pipeline] = len(rows)
            pipeline = -1 if self._is_limit_shared else journey.pipeline
            for s, hop in enumerate(journey.hops):
                times = hop.forward_seconds, hop.backward_input_seconds, hop.backward_weight_seconds
                counted = index_of[hop.worker], len(journey.hops) - s, pipeline
                limit = counted[1] if hop.limit is None else hop.limit
                rows.append(((*times, hop.delay_seconds, hop.activation_bytes), limit, counted))
        return row_of, rows

    def _keys(self, rows: Sequence[Row]) -> tuple[npt.NDArray[np.int64], ...]:
        """Worker and limit of everything that is counted apart, sorted by worker, and what each row belongs to."""
        unlimited = int(np.iinfo(np.int64).max)
        limits: dict[tuple[int, int, int], int] = {}
        for _, limit, key in rows:
            limits[key] = min(limits.get(key, unlimited), limit if self._is_limited else unlimited)
        distinct = sorted(limits)
        index_of = {key: index for index, key in enumerate(distinct)}
        return (
            np.array([worker for worker, _, _ in distinct], dtype=np.int64),
            np.array([limits[key] for key in distinct], dtype=np.int64),
            np.array([index_of[key] for _, _, key in rows], dtype=np.int64),
        )


def _starts(owners: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
    """Where the part of each of `count` owners begins when everything lies owner by owner. Shape [count]."""
    sizes = np.bincount(owners, minlength=count)
    result: npt.NDArray[np.int64] = np.cumsum(sizes) - sizes
    return result
