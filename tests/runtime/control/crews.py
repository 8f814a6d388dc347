"""A conductor's job without processes: its workers do at once what they are told, and say so when they are listened to."""

import time
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import singledispatchmethod
from types import SimpleNamespace

from kintsugi.core.errors import ConflictError
from kintsugi.runtime.control.attempt import Phase
from kintsugi.runtime.control.conductor import Conductor
from kintsugi.runtime.control.decider import Decider
from kintsugi.runtime.control.decisions import Decisions, JobRequest
from kintsugi.runtime.control.fleet import Fleet, News
from kintsugi.runtime.messages import (
    CallOff,
    Collect,
    Collected,
    Finished,
    FromWorker,
    Go,
    Prepare,
    Quiesced,
    Ready,
    Resumed,
    StepDone,
)
from kintsugi.runtime.options import AgentOptions, WorkerOptions
from kintsugi.runtime.workers.commit import StepStatus
from tests.runtime.jobs import tiny_gpt

PATIENCE_SECONDS = 120.0


@dataclass(eq=False)
class Seat:
    """A worker as its agent sees it."""

    worker: str
    started_at: float | None = 0.0
    created_at: float = field(default_factory=time.monotonic)
    address: None = None
    struck_at: float | None = None
    exit_code: int | None = None
    reason: str = ""
    ending: str = ""
    is_leaving: bool = False
    is_fenced: bool = False
    is_willing: bool = True
    """Whether it gets ready and tells what it trained."""
    status: StepStatus | None = None
    writing: tuple[tuple[int, int], ...] = ()
    """Attempt and step of checkpoints of which it says that its part is being written."""
    told: list[object] = field(default_factory=list)
    answers: deque[FromWorker] = field(default_factory=deque)
    _plan: Prepare | None = None

    def send(self, message: object) -> None:
        self.told.append(message)
        self._on(message)

    def fence(self, timeout_seconds: float = 0.0) -> None:
        self.is_fenced = True

    strike = fence

    @property
    def process(self) -> SimpleNamespace:
        """It ends at once."""
        return SimpleNamespace(join=lambda _: None)

    @singledispatchmethod
    def _on(self, message: object) -> None:
        """Nothing comes of it."""

    @_on.register
    def _(self, message: CallOff) -> None:
        self.answers.append(Quiesced(message.attempt, self.status, self.writing))

    @_on.register
    def _(self, message: Prepare) -> None:
        self._plan = message
        if self.is_willing:
            self.get_ready()

    @_on.register
    def _(self, message: Collect) -> None:
        if self.is_willing:
            self.answers.append(Collected(message.attempt, {}, {}))

    @_on.register
    def _(self, message: Go) -> None:
        assert self._plan is not None
        self.status = StepStatus(self._plan.start_step) if self.worker in self._plan.plan.workers else None
        if self.status is not None:
            self.answers.append(Resumed(message.attempt, 0.0))
            self.answers.append(StepDone(message.attempt, self.status.step, 0.0, 0.0, 0.0, (1,)))
            self.status = StepStatus(self.status.step + 1)

    def get_ready(self) -> None:
        """It has staged the plan, and is willing from now on."""
        assert self._plan is not None
        self.is_willing = True
        self.answers.append(Ready(self._plan.attempt, 0.0, 0.0))

    def finish(self) -> None:
        """It has done all steps."""
        assert self._plan is not None
        self.answers.append(Finished(self._plan.attempt))

    def heard(self, kind: type) -> int:
        """How often it was told a kind of message."""
        return sum(isinstance(message, kind) for message in self.told)


class Crew(Fleet):
    """Seats instead of processes."""

    def __init__(self) -> None:
        super().__init__(tiny_gpt, WorkerOptions())
        self.ended: list[Seat] = []

    def start(self, workers) -> None:
        self.handles = {worker: Seat(worker) for worker in workers}

    def invite(self, worker: str) -> None:
        if worker in self.handles or worker in self.arrivals:
            raise ConflictError("is here already", field="worker", value=worker)
        self.arrivals[worker] = Seat(worker)

    def frozen(self, options) -> list:
        return []

    def hear_running(self, options) -> None:
        """All are heard."""

    def listen(self, wake, timeout_seconds: float) -> News:
        said = [(seat, seat.answers.popleft()) for seat in self.handles.values() for _ in tuple(seat.answers)]
        ended, self.ended = self.ended, []
        if wake.poll(0.0 if said or ended else 0.01):
            wake.recv()
        return News(tuple(said), tuple(ended))


class Ensemble:
    """A conductor and its crew; a context manager."""

    def __init__(self, request: JobRequest, source: Decisions, options: AgentOptions | None = None) -> None:
        self.crew = Crew()
        self.decider = Decider(source, timeout_seconds=0.0)
        self.conductor = Conductor(request, self.crew, self.decider, options or AgentOptions())
        self._open = ExitStack()
        self._open.callback(self.crew.close)
        self._open.callback(self.decider.close)

    def __enter__(self) -> "Ensemble":
        self.conductor.start()
        self.until(self.trains)
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def until(self, is_so) -> None:
        """Conduct until something is so."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not is_so():
            assert time.monotonic() < deadline, f"{self.conductor.phase} in generation {self.generation}"
            self.conductor.poll()

    def trains(self) -> bool:
        """Whether all that have a slot train, and nothing is decided."""
        resumed = self.conductor._attempt.resumed.keys() >= set(self.conductor.decision.plan.workers)
        return self.conductor.phase is Phase.TRAINING and resumed and self.decider.is_done() and not self.decider.has_answer()

    def lose(self, *workers: str) -> None:
        """Processes end."""
        self.crew.ended.extend(self.crew.handles[worker] for worker in workers)

    @property
    def generation(self) -> int:
        return self.conductor.decision.plan.generation

    @property
    def here(self) -> set[str]:
        """Whom the agent counts on."""
        return set(self.crew.handles)
