"""One scale-out under every method, over the same links, between the same processes, to the same joiner."""

import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.churn import nodes as on_node
from benchmarks.churn.baselines import Method, sends, tree_of
from benchmarks.churn.nodes import Duty, Nodes, Training
from benchmarks.churn.overlays import Drawn
from benchmarks.churn.plane import Send
from benchmarks.churn.testbed import Testbed

_SETTLING_STEPS = 2
_UNDISTURBED_STEPS = 5
_POLL_SECONDS = 0.02
_WARM_BYTES = 24 * 2**20
_PATIENCE_SECONDS = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is the same in all events."""

    state_bytes: int
    shard_bytes: int
    compute_seconds: float
    gradient_bytes: int
    rate_ratio: float = 1.0
    """Of what links carry to what was drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One scale-out under one method."""

    method: Method
    num_active: int
    num_neighbors: int
    state_bytes: int
    seed: int
    """Of the overlay: outcomes with the same numbers of nodes, bytes and seed are of the same event."""
    delay_seconds: float
    """From the boundary at which the first source began until the joiner held the whole state."""
    bound_seconds: float
    """No way of copying the state over the joiner's links is faster."""
    idle_seconds: float
    """By how much the steps of all active nodes were lengthened, and the joiner's own wait, summed up."""
    step_seconds: float
    """An undisturbed step."""

    @property
    def over_bound_ratio(self) -> float:
        """Delay over bound."""
        return self.delay_seconds / self.bound_seconds


@contextmanager
def state_file(num_bytes: int) -> Iterator[Path]:
    """A file in memory whose every eight bytes differ."""
    with tempfile.NamedTemporaryFile(prefix="kintsugi-state-", dir="/dev/shm") as file:
        path = Path(file.name)
        np.arange(-(-num_bytes // 8), dtype=np.uint64).view(np.uint8)[:num_bytes].tofile(path)
        yield path


def scale_out(overlay: Drawn, setting: Setting, methods: Sequence[Method], seed: int) -> list[Outcome]:
    """The same scale-out under every method, in random order; a restart comes last, since nothing goes on after it."""
    with (
        state_file(setting.state_bytes) as path,
        Testbed(overlay.names, overlay.wires) as testbed,
        Nodes(testbed, overlay.names) as nodes,
    ):
        event = _Event(nodes, overlay, setting, path, seed)
        event.begin()
        event.warm_up()
        live = [method for method in methods if method is not Method.CHECKPOINT]
        random.Random(f"order {seed}").shuffle(live)
        outcomes = [event.replicate(method) for method in live]
        if Method.CHECKPOINT in methods:
            outcomes.append(event.restart())
        return outcomes


class _Event:
    def __init__(self, nodes: Nodes, overlay: Drawn, setting: Setting, path: Path, seed: int) -> None:
        self._nodes, self._overlay, self._setting, self._path, self._seed = nodes, overlay, setting, path, seed
        self._step_seconds = 0.0

    def begin(self) -> None:
        """Let the nodes train, and see how long a step takes when nothing happens."""
        setting, overlay = self._setting, self._overlay
        self._nodes.call(on_node.hold, self._path, on=overlay.active)
        training = Training(
            compute_seconds=setting.compute_seconds, gradient_bytes=setting.gradient_bytes, parents=tree_of(overlay)
        )
        self._nodes.call(on_node.train, training, on=overlay.active)
        self._wait_for_step(_SETTLING_STEPS + _UNDISTURBED_STEPS)
        ends = self._ends()[overlay.active[0]][_SETTLING_STEPS:]
        self._step_seconds = statistics.median(np.diff(ends).tolist())

    def warm_up(self) -> None:
        """Have every line carry something, as the probes that measure a link do: no method pays for a line's first seconds."""
        size = min(_WARM_BYTES, self._setting.state_bytes)
        for method in (Method.MULTI_SOURCE, Method.EVEN):
            self._transfer(sends(method, self._overlay, size, self._setting.shard_bytes), size, waits=False)

    def replicate(self, method: Method) -> Outcome:
        """Bring the state to the joiner while the others train, or wait where the method makes them."""
        size = self._setting.state_bytes
        plan = sends(method, self._overlay, size, self._setting.shard_bytes)
        boundary, began, filled = self._transfer(plan, size, waits=method.has_barrier)
        self._wait_for_step(self._newest_step() + _SETTLING_STEPS)
        outcome = self._outcome(method, began, filled, self._lengthened(boundary, filled))
        self._prove()
        return outcome

    def _transfer(self, plan: Sequence[Send], num_bytes: int, *, waits: bool) -> tuple[int, float, float]:
        """The step behind whose end the plan was carried out, when its first source began, and when the last byte was there."""
        overlay = self._overlay
        self._nodes.call(on_node.make_room, num_bytes, on=[overlay.joiner])
        boundary = self._undertake(plan, waits=waits)
        filled: float = self._nodes.call(on_node.fill, num_bytes, on=[overlay.joiner])[overlay.joiner]
        self._nodes.call(on_node.go_on, on=overlay.active)
        began = self._nodes.call(on_node.began_at, on=sorted({send.way[0] for send in plan}))
        return boundary, min(began.values()), filled

    def restart(self) -> Outcome:
        """Stop everybody, write the state to disk, start every process anew, and have all of them read it."""
        overlay = self._overlay
        self._undertake((), waits=True)
        began = self._nodes.call(on_node.began_at, on=overlay.active)
        with tempfile.TemporaryDirectory(prefix="kintsugi-") as folder:
            checkpoint = Path(folder, "state")
            self._nodes.call(on_node.write_checkpoint, checkpoint, on=overlay.active[:1])
            self._nodes.close()
            with Nodes(self._nodes.testbed, overlay.names) as again:
                read = max(again.call(on_node.read_checkpoint, checkpoint).values())
        waited = sum(read - at for at in began.values())
        return self._outcome(Method.CHECKPOINT, min(began.values()), read, waited)

    def _undertake(self, plan: Sequence[Send], *, waits: bool) -> int:
        """Give every node its duty; the step behind whose end it is done."""
        active = self._overlay.active
        boundary = self._newest_step() + 2
        duties = {
            node: Duty(boundary=boundary, sends=tuple(send for send in plan if send.way[0] == node), waits=waits) for node in active
        }
        self._nodes.ask({node: (on_node.undertake, (duty,)) for node, duty in duties.items()})
        return boundary

    def _newest_step(self) -> int:
        """That the first of the nodes is at."""
        return max(self._nodes.call(on_node.num_steps, on=self._overlay.active).values(), default=0)

    def _prove(self) -> None:
        """The joiner's state is that of the nodes, bit for bit."""
        joiner, source = self._overlay.joiner, self._overlay.active[0]
        digests = self._nodes.call(on_node.digest, on=[joiner, source])
        assert digests[joiner] == digests[source], "every byte came once, to where it belongs"

    def _lengthened(self, boundary: int, filled: float) -> float:
        """Sum over the nodes of what the steps behind the boundary took more than usual, until the state was there."""
        total = 0.0
        for ends in self._ends().values():
            last = next(step for step, end in enumerate(ends) if step > boundary and end >= filled)
            total += ends[last] - ends[boundary] - (last - boundary) * self._step_seconds
        return total

    def _ends(self) -> dict[str, list[float]]:
        return self._nodes.call(on_node.step_ends, on=self._overlay.active)

    def _wait_for_step(self, step: int) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while min(self._nodes.call(on_node.num_steps, on=self._overlay.active).values()) < step:
            if time.monotonic() > deadline:
                raise TimeoutError(f"step {step} was not reached")
            time.sleep(_POLL_SECONDS)

    def _outcome(self, method: Method, began: float, filled: float, lengthened: float) -> Outcome:
        overlay, setting = self._overlay, self._setting
        return Outcome(
            method=method,
            num_active=len(overlay.active),
            num_neighbors=len(overlay.neighbors),
            state_bytes=setting.state_bytes,
            seed=self._seed,
            delay_seconds=filled - began,
            bound_seconds=overlay.bound_seconds(setting.state_bytes),
            idle_seconds=max(lengthened, 0.0) + filled - began,
            step_seconds=self._step_seconds,
        )
