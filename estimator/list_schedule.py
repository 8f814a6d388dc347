"""Orders of passes for micro-batches whose ways share workers, as in rerouted pipelines: event-driven list scheduling."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from estimator.arrays import Ints
from estimator.schedule import INPUT, KINDS, Pass, most_in_flight
from estimator.simulation import DESK, HALT, KEY, OP, PLACED, Records, simulate
from kintsugi.core.plan import Schedule

Limited = tuple[int, int, int]
"""What a limit counts: the micro-batches of a worker, with so many stages to go, of a pipeline (or -1 for all)."""


class Hop(NamedTuple):
    """One stage of one micro-batch's way, on the worker that computes it."""

    worker: str
    forward_seconds: float
    backward_input_seconds: float
    backward_weight_seconds: float
    delay_seconds: float
    """Link delay between this stage and the next, each way; 0 after the last."""
    activation_bytes: int = 0
    """Held from the forward pass to the backward pass, or to its input part."""
    deferred_bytes: int = 0
    """Held from the input part to the weight part."""
    limit: int | None = None
    """Most micro-batches between forward and backward pass; None for what the schedule has with so many stages to go."""


class Journey(NamedTuple):
    """The way of some micro-batches of one pipeline through all stages."""

    pipeline: int
    hops: tuple[Hop, ...]
    microbatches: Sequence[int]
    turns: Sequence[int]
    """Place of each micro-batch in its own pipeline."""


class Budget(NamedTuple):
    """What a worker has, in bytes."""

    activation_bytes: int
    """For activations, beside what forward and whole backward passes take."""
    input_excess_bytes: int = 0
    """How much more an input part takes than those; below 0 if less."""
    weight_excess_bytes: int = 0
    """The same of a weight part."""


class PlacedPass(NamedTuple):
    """A pass in a worker's order; `microbatch` counts over all pipelines."""

    kind: Pass
    microbatch: int
    pipeline: int
    stage: int


@dataclass(frozen=True, slots=True, eq=False)
class Numbering:
    """Passes by number: journey by journey, micro-batch by micro-batch and stage by stage."""

    pipelines: Ints
    """Of each micro-batch, shape [micro-batches] like the next one."""
    microbatches: Ints
    first_op: Ints
    """Where each micro-batch's passes begin, shape [micro-batches + 1]."""

    def places(self, ops: Ints) -> Iterator[tuple[int, int, int]]:
        """Micro-batch, pipeline and stage of some passes."""
        rows = np.searchsorted(self.first_op, ops, side="right") - 1
        columns = self.microbatches[rows], self.pipelines[rows], ops - self.first_op[rows]
        return zip(*(column.tolist() for column in columns), strict=True)


@dataclass(frozen=True, eq=False)
class WorkerSchedule:
    """What one worker computes, in order, and what that makes it hold."""

    end_seconds: float
    """End of the last pass."""
    busy_seconds: float
    num_in_flight: int
    """Most micro-batches whose activations are held at once."""
    activation_bytes: int
    """Most bytes held at once of activations, with what parts of split backward passes take beyond whole ones."""
    _numbering: Numbering
    _placed: Records

    @cached_property
    def last_seconds(self) -> dict[tuple[int, int], float]:
        """End of the last pass through each (pipeline, stage) that the worker computes."""
        places = ((pipeline, stage) for _, pipeline, stage in self._numbering.places(self._placed["op"]))
        return dict(zip(places, self._placed["end"].tolist(), strict=True))

    @cached_property
    def splits_backward(self) -> bool:
        """Whether any backward pass is in two parts."""
        return bool((self._placed["kind"] == INPUT).any())

    @cached_property
    def passes(self) -> tuple[PlacedPass, ...]:
        """All passes in order."""
        places = self._numbering.places(self._placed["op"])
        return tuple(PlacedPass(KINDS[kind], *place) for kind, place in zip(self._placed["kind"].tolist(), places, strict=True))


class ListScheduler:
    """Event-driven list scheduling of micro-batches whose ways share workers (rerouted pipelines).

    The order is read off one simulated execution, so it admits an execution. What a worker serves has a limit on the
    micro-batches between forward and backward pass: its stage's own or what its schedule has there, for each pipeline apart
    or, where memory is tight, shared by all pipelines, so that rerouting needs no more activation memory than the plan it
    departs from. Either way what has as many stages to go drains once what has fewer does, and last stages always drain.

    With a split backward pass (ReCycle; Gandhi et al., SOSP 2024) input parts are scheduled as backward passes are, and
    weight parts wait until their worker has nothing else to do, or no memory left for another forward pass; first stages,
    for whose input part nobody waits, pass backward in one, and so does whoever has no memory to put another weight part off.
    O(n log n) for n passes.
    """

    def __init__(
        self,
        journeys: Sequence[Journey],
        schedule: Schedule,
        *,
        is_limit_shared: bool,
        budgets: Mapping[str, Budget] | None = None,
    ) -> None:
        """Prepare; `run` schedules.

        Args:
            journeys: of all micro-batches that share workers.
            schedule: sets the limits.
            is_limit_shared: whether the pipelines that a worker serves share its limits.
            budgets: by worker; weight parts are not put off beyond them. None is no limit.
        """
        self._journeys = journeys
        self._is_limited, self._lag = schedule is not Schedule.GPIPE, schedule.lag
        self._is_limit_shared = is_limit_shared
        self._workers = sorted({hop.worker for journey in journeys for hop in journey.hops})
        own = ((budgets or {}).get(worker, (np.inf, 0, 0)) for worker in self._workers)
        self._budgets = np.array(list(own), dtype=np.float64)

    def run(self, *, is_split: bool = False) -> dict[str, WorkerSchedule]:
        """Every worker's schedule, with whole backward passes or split ones; every journey is complete."""
        halts, keys, desks = self._stands
        keys, desks, ops = keys.copy(), desks.copy(), self._ops
        placed = np.empty(3 * len(ops), PLACED)
        num_finished = simulate(halts, ops, keys, desks, placed, is_split)
        assert num_finished == len(ops), "some journey is incomplete"
        columns = (desks[name].tolist() for name in ("end", "busy", "most", "most_bytes", "first_placed", "num_placed"))
        return {
            worker: WorkerSchedule(
                end_seconds=end,
                busy_seconds=busy,
                num_in_flight=most,
                activation_bytes=most_bytes,
                _numbering=self._numbering,
                _placed=placed[first : first + count],
            )
            for worker, end, busy, most, most_bytes, first, count in zip(self._workers, *columns, strict=True)
        }

    @cached_property
    def _widths(self) -> Ints:
        """Stages of each journey."""
        return np.array([len(journey.hops) for journey in self._journeys])

    @cached_property
    def _journey_of(self) -> Ints:
        """The journey of each micro-batch. Shape [micro-batches]."""
        return np.repeat(np.arange(len(self._journeys)), [len(journey.microbatches) for journey in self._journeys])

    @cached_property
    def _numbering(self) -> Numbering:
        pipelines = np.array([journey.pipeline for journey in self._journeys])[self._journey_of]
        microbatches = np.array([microbatch for journey in self._journeys for microbatch in journey.microbatches])
        return Numbering(pipelines, microbatches, np.append(0, np.cumsum(self._widths[self._journey_of])))

    @cached_property
    def _ops(self) -> Records:
        """Passes for the simulation."""
        first_op, microbatches = self._numbering.first_op, self._numbering.microbatches
        turns = np.array([turn for journey in self._journeys for turn in journey.turns])
        rank = np.empty(len(turns), dtype=np.int64)
        rank[np.lexsort((microbatches, turns))] = np.arange(len(turns))
        first_halt, widths = np.cumsum(self._widths) - self._widths, self._widths[self._journey_of]
        stage = np.arange(first_op[-1]) - np.repeat(first_op[:-1], widths)
        ops = np.empty(len(stage), OP)
        ops["halt"] = np.repeat(first_halt[self._journey_of], widths) + stage
        ops["rank"] = np.repeat(rank * self._widths.max(), widths) + stage
        return ops

    @cached_property
    def _stands(self) -> tuple[Records, Records, Records]:
        """Stages of all ways, limits and workers for the simulation."""
        counted, limits = self._limits()
        halts, keys, desks = self._halts(counted, sorted(limits)), np.zeros(len(limits), KEY), np.zeros(len(self._workers), DESK)
        sizes = np.repeat([len(journey.microbatches) for journey in self._journeys], self._widths)
        keys["limit"] = [limits[key] for key in sorted(limits)]
        keys["head"] = keys["tail"] = _starts(halts["key"], sizes, len(keys))
        workers, everyone = np.array([worker for worker, _, _ in sorted(limits)]), np.arange(len(desks))
        desks["first_key"], desks["stop_key"] = np.searchsorted(workers, everyone), np.searchsorted(workers, everyone, side="right")
        places = _starts(halts["worker"], sizes, len(desks))
        for name in ("backward_head", "backward_tail", "weight_head", "weight_tail"):
            desks[name] = places
        desks["first_placed"] = 3 * places
        desks["budget"], desks["input_excess"], desks["weight_excess"] = self._budgets.T
        return halts, keys, desks

    def _halts(self, counted: Sequence[Limited], keys: Sequence[Limited]) -> Records:
        index_of = {key: index for index, key in enumerate(keys)}
        rows = [
            (
                own[0],
                index_of[own],
                stage == 0,
                stage == len(journey.hops) - 1,
                hop.activation_bytes,
                hop.deferred_bytes,
                hop.forward_seconds,
                hop.backward_input_seconds,
                hop.backward_weight_seconds,
                hop.delay_seconds,
            )
            for own, (journey, stage, hop) in zip(counted, self._hops(), strict=True)
        ]
        return np.array(rows, HALT)

    def _limits(self) -> tuple[list[Limited], dict[Limited, int]]:
        """What the limit of each stage of each way counts, and the limits."""
        index_of, unlimited = {worker: index for index, worker in enumerate(self._workers)}, int(np.iinfo(np.int64).max)
        counted, limits = [], dict[Limited, int]()
        for journey, stage, hop in self._hops():
            left = len(journey.hops) - stage
            key = index_of[hop.worker], left, -1 if self._is_limit_shared else journey.pipeline
            limit = most_in_flight(left, self._lag) if hop.limit is None else hop.limit
            limits[key] = min(limits.get(key, unlimited), limit if self._is_limited else unlimited)
            counted.append(key)
        return counted, limits

    def _hops(self) -> Iterator[tuple[Journey, int, Hop]]:
        return ((journey, stage, hop) for journey in self._journeys for stage, hop in enumerate(journey.hops))


def _starts(owners: Ints, sizes: Ints, count: int) -> Ints:
    """Where the part of each of `count` owners begins when everything lies owner by owner. Shape [count]."""
    totals = np.bincount(owners, weights=sizes, minlength=count).astype(np.int64)
    result: Ints = np.cumsum(totals) - totals
    return result
