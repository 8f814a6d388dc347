"""Workers as threads of this process: each with its own model, coordinator and links, all next to one desk."""

import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import torch
from torch import nn

from kintsugi.core.overlay import Overlay
from kintsugi.core.overlay_messages import OverlayEvent
from kintsugi.runtime.overlay.coordinator import Coordinator
from kintsugi.runtime.overlay.options import OverlayOptions
from tests.runtime.overlay.desk import Desk

OPTIONS = OverlayOptions(
    join_timeout_seconds=60.0,
    reduction_timeout_seconds=60.0,
    drain_timeout_seconds=20.0,
    link_timeout_seconds=60.0,
    reads_signals=False,
    chunk_bytes=1024,
)


def perceptron() -> tuple[nn.Module, torch.optim.Optimizer]:
    """A small model in 64 bits, and Adam."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 2)).double()
    return model, torch.optim.Adam(model.parameters(), 1e-2)


def wide() -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model whose state takes a while to send, compared to a step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4096), nn.Tanh(), nn.Linear(4096, 2)).double()
    return model, torch.optim.Adam(model.parameters(), 1e-3)


Build = Callable[[], tuple[nn.Module, torch.optim.Optimizer]]


@dataclass
class Line:
    """What one worker saw of one reduction."""

    worker: str
    number: int
    step: int
    contributors: tuple[str, ...]
    digest: str
    loss: float


@dataclass
class Crew:
    """The workers of one job and what they saw."""

    desk: Desk = field(default_factory=Desk)
    options: OverlayOptions = OPTIONS
    build: Build = perceptron
    lines: list[Line] = field(default_factory=list)
    members: dict[str, "Member"] = field(default_factory=dict)

    @property
    def witnessed(self) -> list[Line]:
        """What workers saw, but for the last reduction of each that was struck: it may have ended before others had their part."""
        last = {line.worker: line for line in self.lines}
        struck = {worker for worker, member in self.members.items() if member.is_struck.is_set()}
        return [line for line in self.lines if line.worker not in struck or line is not last[line.worker]]

    def start(self, worker: str, neighbors: Sequence[str] | None = None, **arguments) -> "Member":
        member = self.members[worker] = Member(self, worker, neighbors, arguments)
        member.start()
        return member

    def start_connected(self, *workers: str) -> None:
        """Each is linked with all before it, and has made a step before the next one joins."""
        for index, worker in enumerate(workers):
            self.start(worker, workers[:index] or None).await_steps(1)

    def finish(self, timeout_seconds: float = 60.0) -> None:
        """Let everybody leave, wait until all have, and hand on what went wrong."""
        for member in self.members.values():
            member.is_leaving.set()
        for member in self.members.values():
            member.join(timeout_seconds)
        errors = [member.error for member in self.members.values() if member.error is not None]
        for member in self.members.values():
            with suppress(AttributeError):
                member.coordinator.close()
        assert not errors, errors
        assert not any(member.is_alive() for member in self.members.values())


class Telephone:
    """To the desk; dead once its owner was struck."""

    def __init__(self, desk: Desk, is_dead: threading.Event) -> None:
        self._desk, self._is_dead = desk, is_dead
        self.overlay, self.beat, self.moved, self.close = desk.overlay, desk.beat, desk.moved, desk.close

    def post(self, event: OverlayEvent) -> Overlay:
        """The overlay as it is now; what a struck worker's threads still say reaches nobody."""
        return self._desk.now if self._is_dead.is_set() else self._desk.post(event)


class Member(threading.Thread):
    """One worker."""

    def __init__(self, crew: Crew, worker: str, neighbors: Sequence[str] | None, arguments: dict) -> None:
        super().__init__(name=f"member-{worker}", daemon=True)
        self.crew, self.worker, self.neighbors, self.arguments = crew, worker, neighbors, arguments
        self.is_leaving, self.is_struck, self.has_joined = threading.Event(), threading.Event(), threading.Event()
        self.error: BaseException | None = None
        self.num_steps = 0
        self._stepped = threading.Condition()
        self.pause_seconds = 0.0

    def run(self) -> None:
        try:
            self._train()
        except BaseException as error:
            self.error = None if self.is_struck.is_set() else error
        finally:
            with self._stepped:
                self._stepped.notify_all()
            self.has_joined.set()

    def await_steps(self, count: int, timeout_seconds: float = 100.0) -> None:
        """Wait until it has done so many steps itself."""
        with self._stepped:
            self._stepped.wait_for(lambda: self.num_steps >= count or not self.is_alive(), timeout_seconds)
        assert self.num_steps >= count, (self.worker, self.num_steps, self.error)

    def strike(self) -> None:
        """End it without a word: its sockets close, as those of a killed process do."""
        self.is_struck.set()
        self.coordinator.close()

    def _train(self) -> None:
        model, optimizer = self.crew.build()
        self.model = model
        self.coordinator = Coordinator(
            model,
            optimizer,
            service=Telephone(self.crew.desk, self.is_struck),
            job=self.crew.desk.now.name,
            worker=self.worker,
            neighbors=self.neighbors,
            **{"options": self.crew.options, **self.arguments},
        )
        self.has_joined.set()
        while not self.is_leaving.is_set():
            self._step(model)
        self.coordinator.request_node_exit()

    def _step(self, model: nn.Module) -> None:
        coordinator = self.coordinator
        loss = own_loss(model, self.worker, coordinator.step)
        loss.backward()
        if self.pause_seconds:
            self.is_leaving.wait(self.pause_seconds)
        done = coordinator.update()
        if self.is_struck.is_set():
            return
        line = Line(self.worker, done.number, coordinator.step, tuple(done.weights), coordinator.digest(), loss.item())
        with self._stepped:
            self.crew.lines.append(line)
            self.num_steps += 1
            self._stepped.notify_all()


def own_loss(model: nn.Module, worker: str, step: int) -> torch.Tensor:
    """The loss on this worker's own data of a step: data of several parties."""
    generator = torch.Generator().manual_seed(1_000 * step + sum(worker.encode()))
    inputs = torch.randn(8, 6, generator=generator, dtype=torch.float64).to(next(model.parameters()).device)
    return nn.functional.mse_loss(model(inputs), inputs[:, :2].sin())


def replayed(lines: Sequence[Line], build: Build = perceptron) -> dict[int, dict[str, float]]:
    """Losses by step and worker of an uninterrupted computation in which the same workers contribute to each step."""
    contributors: dict[int, tuple[str, ...]] = {}
    for line in lines:
        assert contributors.setdefault(line.step - 1, line.contributors) == line.contributors, "a step with two sums"
    model, optimizer = build()
    losses: dict[int, dict[str, float]] = {}
    for step in range(max(contributors) + 1):
        optimizer.zero_grad()
        for worker in contributors[step]:
            loss = own_loss(model, worker, step)
            losses.setdefault(step, {})[worker] = loss.item()
            (loss / len(contributors[step])).backward()
        optimizer.step()
    return losses


def cut(crew: Crew, one: str, other: str) -> None:
    """Break the connection between two workers; both live on."""
    link = crew.members[one].coordinator.links.get(other)
    if link is not None:
        link._connection.shutdown(socket.SHUT_RDWR)
