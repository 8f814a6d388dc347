"""The product's own workers on nodes of the test bed: a plain loop around `kintsugi.Coordinator`, with emulated computing.

Most of the model is frozen, so that a state of any size goes with gradients that slow links reduce in a fraction of a second, as
in LoRA; a joiner gets everything.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.churn.testbed import Testbed
from benchmarks.members import Member, MemberCrew
from kintsugi.core.errors import KintsugiError
from kintsugi.runtime.overlay.coordinator import Coordinator
from kintsugi.runtime.overlay.options import OverlayOptions

_PATIENCE_SECONDS = 240.0
_LAYERS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSetting:
    """What a worker trains, and where it joins."""

    service: str
    token: str
    job: str
    neighbors: tuple[str, ...]
    state_bytes: int
    gradient_bytes: int
    compute_seconds: float


@dataclass(slots=True)
class Seen:
    """What a worker has seen so far; moments are of the clock that all processes share."""

    asked_at: float = 0.0
    """When it began to join."""
    loaded_at: float = 0.0
    """When it held the state of its neighbours."""
    counted_at: float = 0.0
    """When it had caught up and counted."""
    step: int = 0
    ends: dict[int, float] = field(default_factory=dict)
    """When each step ended."""
    changes: list[int] = field(default_factory=list)
    """Steps behind whose end another overlay took effect."""
    sends_since: dict[str, float] = field(default_factory=dict)
    """End of the reduction behind which it began to send, by joiner."""
    left_at: float = 0.0
    error: str = ""


class _Model(nn.Module):
    """Frozen layers and one that is trained; nothing is computed."""

    def __init__(self, state_bytes: int, gradient_bytes: int) -> None:
        super().__init__()
        frozen = max(state_bytes - 2 * gradient_bytes, 4 * _LAYERS) // 4 // _LAYERS
        layers = [nn.Parameter(torch.full((frozen,), float(index)), requires_grad=False) for index in range(_LAYERS)]
        self.frozen = nn.ParameterList(layers)
        self.trained = nn.Parameter(torch.zeros(gradient_bytes // 4))


class _Loading:
    """A learning-rate schedule without an effect: it is told when a state is loaded."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen

    def step(self) -> None:
        """Nothing changes."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing is kept."""
        return {}

    def load_state_dict(self, _state: Mapping[str, Any]) -> None:
        """The state is there."""
        self._seen.loaded_at = time.monotonic()


class Worker(Member):
    """A process in a namespace of the test bed; its training thread holds the coordinator."""

    seen: Seen
    coordinator: Coordinator | None
    leaving: threading.Event
    reduced_at: float = 0.0

    def train(self, setting: WorkerSetting) -> None:
        """Join, train until told to leave, and leave."""
        seen = self.seen
        try:
            model = _Model(setting.state_bytes, setting.gradient_bytes)
            optimizer = torch.optim.SGD([model.trained], lr=0.01, momentum=0.9)
            seen.asked_at = time.monotonic()
            with self._joined(model, optimizer, setting) as coordinator:
                seen.counted_at = time.monotonic()
                self.coordinator = coordinator
                while not self.leaving.is_set():
                    self._step(coordinator, model.trained, setting.compute_seconds)
                coordinator.request_node_exit()
                seen.left_at = time.monotonic()
        except KintsugiError as error:
            seen.error = f"{type(error).__name__}: {error}"

    def _joined(self, model: nn.Module, optimizer: torch.optim.Optimizer, setting: WorkerSetting) -> Coordinator:
        return Coordinator(
            model,
            optimizer,
            service=setting.service,
            job=setting.job,
            worker=self.name,
            neighbors=setting.neighbors,
            host=self._address,
            token=setting.token,
            schedules=[_Loading(self.seen)],
            before_step=self._note_reduction,
            options=OverlayOptions(reads_signals=False),
        )

    def _note_reduction(self) -> None:
        self.reduced_at = time.monotonic()

    def _step(self, coordinator: Coordinator, trained: Tensor, compute_seconds: float) -> None:
        time.sleep(compute_seconds)
        trained.grad = torch.ones_like(trained)
        committed = coordinator.update()
        seen, step = self.seen, coordinator.step
        seen.ends[step] = time.monotonic()
        if committed.agreed is not None:
            seen.changes.append(step)
        for joiner in coordinator.check_state_replication():
            seen.sends_since.setdefault(joiner, self.reduced_at)
        seen.step = step


def begin(worker: Worker, setting: WorkerSetting) -> None:
    """Join in a thread of its own; `look` tells how far it is."""
    worker.seen, worker.coordinator, worker.leaving = Seen(), None, threading.Event()
    threading.Thread(target=worker.train, args=(setting,), name="trainer", daemon=True).start()


def look(worker: Worker) -> Seen:
    """What it has seen."""
    return worker.seen


def brief(worker: Worker) -> tuple[int, float, float, str]:
    """Step, when it counted, when it had left, and its error."""
    seen = worker.seen
    return seen.step, seen.counted_at, seen.left_at, seen.error


def forget(worker: Worker) -> None:
    """Forget earlier steps and joiners."""
    worker.seen.ends, worker.seen.changes, worker.seen.sends_since = {}, [], {}


def forget_joiner(worker: Worker, joiner: str) -> None:
    """Forget when it began to send to a joiner, which may come again."""
    worker.seen.sends_since.pop(joiner, None)


def leave(worker: Worker) -> float:
    """Have the loop leave at the end of its step; when it was told."""
    worker.leaving.set()
    return time.monotonic()


def link(worker: Worker, peer: str, is_wanted: bool) -> float:
    """Ask for a link, or to give it up; when it was asked."""
    assert worker.coordinator is not None
    asked_at = time.monotonic()
    (worker.coordinator.connect_link if is_wanted else worker.coordinator.disconnect_link)(peer)
    return asked_at


def known_links(worker: Worker) -> list[tuple[str, str, str, float | None, float | None]]:
    """Ends, state, latency and inverse rate of every link of the newest overlay that it knows."""
    assert worker.coordinator is not None
    links = worker.coordinator.overlay.links
    return [(*one.between, one.state.value, one.alpha_seconds, one.beta_seconds_per_byte) for one in links]


class Workers(MemberCrew):
    """A process for each of some nodes of a test bed."""

    def __init__(self, testbed: Testbed, names: Sequence[str]) -> None:
        super().__init__(Worker, testbed.places(names), timeout_seconds=_PATIENCE_SECONDS)

    def until(self, is_so: Callable[[dict[str, Any]], bool], function: Callable[..., Any], on: Sequence[str]) -> dict[str, Any]:
        """Ask again and again until the answers are as awaited.

        Raises:
            TimeoutError: they did not become so.
        """
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not is_so(answers := self.call(function, on=on)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{function.__name__} of {', '.join(on)} was not as awaited: {answers}")
            time.sleep(0.02)
        return answers
