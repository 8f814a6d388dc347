"""Rerouted plans with shorter steps: single micro-batches of dead slots go to other holders of their layers.

Shared out by load alone, micro-batches that one pipeline takes in at several stages hold up its own at each; how they do is only
seen once all passes are ordered. So changes are tried one by one, where the passes that end last are.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from estimator.costs import Costs
from estimator.estimate import overfull
from kintsugi.core.decision import Estimate
from kintsugi.core.plan import Plan, Route, Slot
from planner.policies.rerouting import holders_of_dead_slots, reordered, with_routes

MOST_TRIED = 64
"""Changes of a plan that are priced."""

MOST_PASSES = 16_384
"""Passes of all stages that are ordered for it: in large plans fewer changes are tried, and in very large ones none."""

FEWEST_TRIED = 8
"""Where there is time for fewer, none are."""

MOST_IN_VAIN = 8
"""So many changes in a row for each dead slot without a shorter step end the search."""

MOST_GAIN = 0.05
"""By what share for each dead slot a step may become shorter, about: what would not be worth it even then is not tried."""

LAST = 1e-9
"""By what share before the last pass of all a pipeline's may end to be among those that end last."""


def divert(plan: Plan, price: Estimate, costs: Costs) -> tuple[Plan, Estimate]:
    """`plan`, and its price, with micro-batches of its dead slots given to other holders as long as the step gets shorter.

    One micro-batch goes to another holder, or two change theirs; one of them is at a pipeline with a pass that ends last. Steps as
    long are taken too, for a shorter one may be reached from there. Where there are few ways to share out, all are looked at.
    The same for the same plan.

    Args:
        plan: with none but living workers; without routes it is as it can be.
        price: its own.
        costs: of the job's passes.
    """
    most = _most_tried(plan)
    if not plan.routes or not most:
        return plan, price
    diversion = _Diversion(plan, costs)
    if diversion.num_ways <= most:
        diversion.all_ways()
    else:
        diversion.climb(most)
    found, found_price = reordered(*diversion.best, costs)
    return (found, found_price) if _is_worse(price, found_price, costs) else (plan, price)


def _most_tried(plan: Plan) -> int:
    depth = max(len(pipeline.stages) for pipeline in plan.pipelines)
    if depth == 1:  # then the best by load is the best of all: alike passes, each where it is through first
        return 0
    most = min(MOST_TRIED, MOST_PASSES // (plan.num_microbatches * depth))
    return most if most >= FEWEST_TRIED else 0


def _is_worse(one: Estimate, other: Estimate, costs: Costs) -> bool:
    """Whether a step lacks memory that another has, or is longer."""
    lacks, other_lacks = bool(overfull(one, costs)), bool(overfull(other, costs))
    return lacks > other_lacks or (lacks == other_lacks and one.iteration_seconds > other.iteration_seconds * (1 + LAST))


class _Diversion:
    """Looks at plans that differ in their routes."""

    def __init__(self, plan: Plan, costs: Costs) -> None:
        self._costs = costs
        holders = holders_of_dead_slots(plan, plan.workers)
        self._most_in_vain = MOST_IN_VAIN * len(holders)
        self._crews = [holders[Slot(pipeline=route.pipeline, stage=route.stage)] for route in plan.routes]
        self._present = self.best = with_routes(plan, plan.routes, costs)
        self._seen = {plan.routes}
        self._chance = random.Random(0)  # noqa: S311

    @property
    def num_ways(self) -> int:
        """How many ways there are to share micro-batches out."""
        return math.prod(map(len, self._crews))

    def all_ways(self) -> None:
        """Look at every way."""
        routes = self._present[0].routes
        for workers in product(*self._crews):
            self._look(tuple(replace(route, worker=worker) for route, worker in zip(routes, workers, strict=True)))

    def climb(self, most: int) -> None:
        """Look at one change after the other, of the last that was no worse; at `most` plans."""
        in_vain = 0
        for _ in range(2 * most):
            before, known = self.best, len(self._seen)
            self._look(self._changed())
            in_vain = 0 if self.best is not before else in_vain + len(self._seen) - known
            if len(self._seen) > most or in_vain >= self._most_in_vain:
                return

    def _look(self, routes: tuple[Route, ...]) -> None:
        if routes in self._seen:
            return
        self._seen.add(routes)
        option = with_routes(self._present[0], routes, self._costs)
        if not _is_worse(option[1], self._present[1], self._costs):
            self._present = option
            if _is_worse(self.best[1], option[1], self._costs):
                self.best = option

    def _changed(self) -> tuple[Route, ...]:
        """One micro-batch with another holder, or two with each other's; as they are where that is not possible."""
        routes, chance = list(self._present[0].routes), self._chance
        one = chance.choice(self._last())
        if chance.random() < 0.5:
            routes[one] = replace(routes[one], worker=chance.choice(self._crews[one]))
            return tuple(routes)
        other = chance.randrange(len(routes))
        mine, others = routes[one].worker, routes[other].worker
        if others in self._crews[one] and mine in self._crews[other]:
            routes[one], routes[other] = replace(routes[one], worker=others), replace(routes[other], worker=mine)
        return tuple(routes)

    def _last(self) -> Sequence[int]:
        """Places of the routes from or to pipelines with a pass that ends last; of all where there are none."""
        plan, _, passes = self._present
        ends = {worker: own.end_seconds for worker, own in passes.rerouted.items()}
        least = max(ends.values()) * (1 - LAST)
        pipelines = {plan.pipeline_of[worker] for worker, seconds in ends.items() if seconds >= least}
        last = [n for n, route in enumerate(plan.routes) if {route.pipeline, plan.pipeline_of[route.worker]} & pipelines]
        return last or range(len(plan.routes))
