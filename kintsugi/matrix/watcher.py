"""Sees a cell's job from inside its agent: notes what happens, and strikes where the schedule says."""

import os
import time
from collections.abc import Sequence

from kintsugi.matrix.events import Event, EventLog, Kind
from kintsugi.runtime.control.agent import Agent
from kintsugi.runtime.control.attempt import Phase

EXIT_CODE = 137
"""Of a job that is struck as a whole, as a shell tells of SIGKILL (ECRL, section 4.5)."""
_ABSENCE_STEPS = 2
"""Committed without a lost worker before it is invited back."""


class Watcher:
    """An observer of one life of a job."""

    def __init__(self, log: EventLog, *, exit_before: int | None, returning: Sequence[str]) -> None:
        """The job ends as a whole before step `exit_before`; workers of `returning` are invited back when they are lost."""
        self._log = log
        self._exit_before = exit_before
        self._returning = returning
        self._phase = Phase.STARTING
        self._next_step: int | None = None
        self._missed: dict[str, int] = {}
        """Step at which each worker was missed first."""

    def __call__(self, agent: Agent) -> None:
        """Look."""
        if self._next_step is None:
            self._next_step = len(agent.losses)
        self._note_steps(agent)
        if agent.phase is not self._phase:
            self._note_phase(agent)
        if self._exit_before is not None and self._next_step >= self._exit_before:
            self._log.write(Event(kind=Kind.STRUCK, at=time.monotonic(), step=self._exit_before))
            os._exit(EXIT_CODE)
        self._invite(agent)

    def _note_steps(self, agent: Agent) -> None:
        assert self._next_step is not None
        while (loss := agent.losses.get(self._next_step)) is not None:
            self._log.write(Event(kind=Kind.STEP, at=time.monotonic(), step=self._next_step, loss=loss))
            self._next_step += 1

    def _note_phase(self, agent: Agent) -> None:
        before, self._phase = self._phase, agent.phase
        now = time.monotonic()
        if agent.phase is Phase.TRAINING:
            workers = len(agent.decision.plan.workers)
            self._log.write(Event(kind=Kind.TRAINING, at=now, step=self._next_step, workers=workers))
        elif agent.phase is Phase.COLLECTING:
            self._log.write(Event(kind=Kind.TRAINED, at=now))
        elif before is Phase.TRAINING:
            recovery = agent.recoveries[-1] if agent.recoveries else None
            at = recovery.began_at if recovery is not None else now
            lost = tuple(recovery.lost) if recovery is not None else ()
            self._log.write(Event(kind=Kind.INTERRUPTED, at=min(at, now), step=self._next_step, lost=lost))

    def _invite(self, agent: Agent) -> None:
        """Have lost workers back once others have shown that they go on without them."""
        assert self._next_step is not None
        here = {*agent.alive, *agent.arriving}
        for worker in self._returning:
            if worker in here:
                self._missed.pop(worker, None)
            elif self._next_step >= self._missed.setdefault(worker, self._next_step) + _ABSENCE_STEPS:
                agent.invite(worker)
