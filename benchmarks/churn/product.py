"""The product itself on the test bed: workers join and leave a running job, and links come and go, under `kintsugi serve`.

One job lasts for all events. Before each all links are drawn anew; the joiner names some of the nodes as neighbours, once all of
them, once only the one with the fastest link. Everything else is the product's: probes, plan, copies, streams, catching up.
"""

import random
import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from rich.console import Console

from benchmarks.churn import workers as on_worker
from benchmarks.churn.measure import Setting
from benchmarks.churn.overlays import Drawn, Wire, drawn, redrawn, scaled, scaled_wires
from benchmarks.churn.scheduler import SchedulerAccess, scheduler
from benchmarks.churn.testbed import Testbed
from benchmarks.churn.workers import Seen, Workers, WorkerSetting

SCHEDULER = "scheduler"
_SCHEDULER_BITS_PER_SECOND = 1e9
_SCHEDULER_LATENCY_SECONDS = 0.010
_SETTLING_STEPS = 2
_LINKS_PER_EVENT = 2
_CALM_STEPS = 6
"""Before and behind what happens, to know how long a step takes without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """One scale-out of the product."""

    num_active: int
    num_neighbors: int
    is_single: bool
    """Whether the joiner named only the neighbour with the fastest link."""
    state_bytes: int
    seed: int
    delay_seconds: float
    """From the end of the first source's reduction until the state was loaded."""
    bound_seconds: float
    """Of the joiner's links, those that it named."""
    join_seconds: float
    """From the constructor's call until the joiner counted: connecting, probing, waiting for a boundary, catching up included."""
    idle_seconds: float
    """By how much the steps of all active workers were lengthened, and the joiner's own wait for the state, summed up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Primitive:
    """One scale-in, connect-link or disconnect-link."""

    kind: str
    num_active: int
    seed: int
    lengthened_seconds: float
    """What all steps around it took more than steps before and behind it."""
    step_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductEvent:
    """What one event gave."""

    num_active: int
    state_bytes: int
    seed: int
    rate_ratio: float = 1.0
    """Of what links carried to what was drawn."""
    compute_seconds: float | None = None
    """Of a step; null, as the next one: nobody noted it."""
    gradient_bytes: int | None = None
    joins: tuple[Join, ...]
    """With all neighbours, and with the one with the fastest link."""
    primitives: tuple[Primitive, ...]

    def is_of(self, setting: Setting) -> bool:
        """Whether it was measured in this setting."""
        own = (self.state_bytes, self.rate_ratio, self.compute_seconds, self.gradient_bytes)
        return own == (setting.state_bytes, setting.rate_ratio, setting.compute_seconds, setting.gradient_bytes)


class Product:
    """A job of the product on a test bed."""

    def __init__(self, overlay: Drawn, setting: Setting, testbed: Testbed, workers: Workers, access: SchedulerAccess) -> None:
        self._overlay, self._setting = overlay, setting
        self._testbed, self._workers, self._access = testbed, workers, access
        self._calm_since = 0

    def grow(self, console: Console) -> None:
        """Have the active nodes join one after the other."""
        for index, name in enumerate(self._overlay.active):
            known = self._overlay.active[:index]
            peers = [wire.between[wire.between[0] == name] for wire in self._overlay.wires if name in wire.between]
            self._join(name, tuple(peer for peer in peers if peer in known))
            console.print(f"{name} trains")
        self._calm_down()

    def event(self, seed: int) -> ProductEvent:
        """The joiner comes with all neighbours, goes, comes with one, and goes; links come and go."""
        overlay = self._redraw(seed)
        self._workers.call(on_worker.forget, on=overlay.active)
        self._calm_down()
        draw = random.Random(f"event {seed}")
        together = self._scale_out(overlay, overlay.neighbors, seed)
        gone = self._scale_in(seed)
        fastest = max(overlay.neighbors, key=lambda neighbor: overlay.wire(neighbor, overlay.joiner).bits_per_second)
        single = self._scale_out(overlay, (fastest,), seed)
        gone_again = self._scale_in(seed)
        unlinked = self._unlinked()
        pairs = draw.sample(unlinked, min(_LINKS_PER_EVENT, len(unlinked)))
        links = [self._change_link(*pair, is_wanted=is_wanted, seed=seed) for pair in pairs for is_wanted in (True, False)]
        return ProductEvent(
            num_active=len(overlay.active),
            state_bytes=self._setting.state_bytes,
            seed=seed,
            rate_ratio=self._setting.rate_ratio,
            compute_seconds=self._setting.compute_seconds,
            gradient_bytes=self._setting.gradient_bytes,
            joins=(together, single),
            primitives=(gone, gone_again, *links),
        )

    def _redraw(self, seed: int) -> Drawn:
        """Draw all links anew; the joiner's are those that joiners of this seed have in any cluster."""
        ratio = self._setting.rate_ratio
        fresh = scaled(drawn(len(self._overlay.active), seed), ratio)
        rates = {wire.between: wire for wire in fresh.joiner_wires}
        wires = [rates.get(wire.between, wire) for wire in scaled_wires(redrawn(self._testbed.wires, seed), ratio)]
        self._testbed.redraw([_scheduler_wire(wire.between) if SCHEDULER in wire.between else wire for wire in wires])
        kept = tuple(wire for wire in self._overlay.wires if self._overlay.joiner not in wire.between)
        return replace(self._overlay, wires=kept + fresh.joiner_wires)

    def _join(self, name: str, neighbors: tuple[str, ...]) -> None:
        setting = self._setting
        asked = WorkerSetting(
            service=self._access.url,
            token=self._access.token,
            job="churn",
            neighbors=neighbors,
            state_bytes=setting.state_bytes,
            gradient_bytes=setting.gradient_bytes,
            compute_seconds=setting.compute_seconds,
        )
        self._workers.call(on_worker.begin, asked, on=[name])
        told = self._workers.until(lambda answers: all(a[1] or a[3] for a in answers.values()), on_worker.brief, [name])
        if error := told[name][3]:
            raise RuntimeError(f"{name} did not join: {error}")

    def _scale_out(self, overlay: Drawn, neighbors: tuple[str, ...], seed: int) -> Join:
        active, joiner = overlay.active, overlay.joiner
        began = self._calm_since
        self._join(joiner, neighbors)
        self._calm_down()
        seen = self._workers.call(on_worker.look)
        mine: Seen = seen[joiner]
        delay = mine.loaded_at - min(seen[source].sends_since[joiner] for source in neighbors)
        self._workers.call(on_worker.forget_joiner, joiner, on=active)
        longer = [lengthened(seen[node], began, mine.asked_at, mine.counted_at)[0] for node in active]
        return Join(
            num_active=len(active),
            num_neighbors=len(neighbors),
            is_single=len(neighbors) == 1,
            state_bytes=self._setting.state_bytes,
            seed=seed,
            delay_seconds=delay,
            bound_seconds=_named(overlay, neighbors).bound_seconds(self._setting.state_bytes),
            join_seconds=mine.counted_at - mine.asked_at,
            idle_seconds=max(sum(longer), 0.0) + delay,
        )

    def _scale_in(self, seed: int) -> Primitive:
        joiner = self._overlay.joiner
        began = self._calm_since
        told_at = self._workers.call(on_worker.leave, on=[joiner])[joiner]
        told = self._workers.until(lambda answers: all(a[2] or a[3] for a in answers.values()), on_worker.brief, [joiner])
        if error := told[joiner][3]:
            raise RuntimeError(f"{joiner} did not leave: {error}")
        return self._primitive("scale-in", began, told_at, seed)

    def _change_link(self, one: str, other: str, *, is_wanted: bool, seed: int) -> Primitive:
        began = self._calm_since
        asked_at = self._workers.call(on_worker.link, other, is_wanted, on=[one])[one]
        self._workers.until(lambda answers: _has(answers[one], one, other) == is_wanted, on_worker.known_links, [one])
        return self._primitive("connect-link" if is_wanted else "disconnect-link", began, asked_at, seed)

    def _primitive(self, kind: str, began: int, asked_at: float, seed: int) -> Primitive:
        self._calm_down()
        seen = self._workers.call(on_worker.look, on=self._overlay.active)
        longer, usual = lengthened(of_all(list(seen.values())), began, asked_at, asked_at)
        return Primitive(kind=kind, num_active=len(self._overlay.active), seed=seed, lengthened_seconds=longer, step_seconds=usual)

    def _calm_down(self) -> None:
        """Let some steps pass in which nothing happens, and remember since when nothing does."""
        active = self._overlay.active
        newest: int = max(step for step, *_ in self._workers.call(on_worker.brief, on=active).values())
        self._calm_since = newest + _SETTLING_STEPS
        last = self._calm_since + _CALM_STEPS
        self._workers.until(lambda answers: min(a[0] for a in answers.values()) >= last, on_worker.brief, active)

    def _unlinked(self) -> list[tuple[str, str]]:
        """Pairs of active nodes that a link of the test bed joins and none of the overlay."""
        linked, active = {wire.between for wire in self._overlay.wires}, set(self._overlay.active)
        return [wire.between for wire in self._testbed.wires if wire.between not in linked and set(wire.between) <= active]


def _has(links: Sequence[tuple[str, str, str, float | None, float | None]], one: str, other: str) -> bool:
    """Whether there is a link that is up and measured."""
    return any(link[:2] == (min(one, other), max(one, other)) and link[2] == "up" and link[4] is not None for link in links)


def of_all(seen: Sequence[Seen]) -> Seen:
    """What the job as a whole has seen: a step ends when the last worker ends it. Another tree has others end it first."""
    steps = set.intersection(*(set(one.ends) for one in seen))
    return Seen(ends={step: max(one.ends[step] for one in seen) for step in steps}, changes=seen[0].changes)


def lengthened(seen: Seen, began: int, asked_at: float, done_at: float) -> tuple[float, float]:
    """What the steps around an event took more than usual, and what a step takes before it.

    What is usual changes at the boundary at which another policy takes effect: up to there it is the mean of the steps before the
    event, from there on that of the steps behind it; so it is 0 on average where an event costs nothing, however steps vary.
    """
    steps = sorted(step for step in seen.ends if step - 1 in seen.ends and step > began)
    times = {step: seen.ends[step] - seen.ends[step - 1] for step in steps}
    first = next(step for step in steps if seen.ends[step] > asked_at)
    changed = [step for step in seen.changes if step >= first]
    last = max(next(step for step in steps if seen.ends[step] >= done_at), *changed, first) + 1
    before = statistics.fmean(times[step] for step in steps if step < first)
    behind = statistics.fmean(times[step] for step in steps if step > last)
    turn = changed[-1] if changed else last
    return sum(times[step] - (before if step <= turn else behind) for step in steps if first <= step <= last), before


def _named(overlay: Drawn, neighbors: Sequence[str]) -> Drawn:
    """The overlay without the joiner's links to others than `neighbors`."""
    kept = [wire for wire in overlay.wires if overlay.joiner not in wire.between or set(wire.between) & set(neighbors)]
    return replace(overlay, wires=tuple(kept))


def _scheduler_wire(between: tuple[str, str]) -> Wire:
    """A link to the scheduler; it does not change."""
    return Wire(between=between, bits_per_second=_SCHEDULER_BITS_PER_SECOND, latency_seconds=_SCHEDULER_LATENCY_SECONDS)


def _wires(overlay: Drawn, seed: int, rate_ratio: float) -> list[Wire]:
    """A link between any two nodes and from each to the scheduler: events choose among them."""
    own = {wire.between: wire for wire in overlay.wires}
    blank = [_scheduler_wire((a, b)) for a in overlay.names for b in overlay.names if a < b]
    between = [own.get(wire.between, wire) for wire in scaled_wires(redrawn(blank, seed), rate_ratio)]
    return between + [_scheduler_wire((SCHEDULER, name)) for name in overlay.names]


@contextmanager
def product(num_active: int, setting: Setting, seed: int, console: Console) -> Iterator[Product]:
    """A job of so many workers that trains, on a test bed of its own."""
    overlay = scaled(drawn(num_active, seed), setting.rate_ratio)
    with ExitStack() as stack:
        testbed = stack.enter_context(Testbed((*overlay.names, SCHEDULER), _wires(overlay, seed, setting.rate_ratio)))
        access = stack.enter_context(scheduler(testbed, SCHEDULER))
        workers = Workers(testbed, overlay.names)
        stack.enter_context(workers)
        made = Product(overlay, setting, testbed, workers, access)
        made.grow(console)
        yield made
