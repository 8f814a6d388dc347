"""Strikes a job as its campaign says: waits until it is at rest, chooses who is struck, and has the lost come back."""

import os
import random
import signal
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from benchmarks.trouble.campaign import IN_RECOVERY, Fault, Kind, Run, Strike
from benchmarks.trouble.service import ServiceProcess
from benchmarks.trouble.victims import Victims
from kintsugi.runtime.control.agent import Agent
from kintsugi.runtime.control.attempt import Phase
from kintsugi.runtime.faults import Fault as ArmedFault
from kintsugi.runtime.faults import FaultKind, FaultPoint
from kintsugi.runtime.messages import Arm
from kintsugi.runtime.processes import WorkerHandle

LONGEST_SLEEP_SECONDS = 1.0
"""Twice as long as a stopped worker goes unnoticed."""
LONGEST_AWAY_SECONDS = 0.5
MISSED_SECONDS = 20.0
"""After which a fault is given up whose point nobody came by."""
SERVICE_PHASES = {FaultPoint.QUIESCE: Phase.QUIESCING, FaultPoint.REGROUP: Phase.PREPARING, FaultPoint.TRANSFER: Phase.PREPARING}
"""When the service is struck that is to be struck at a point of a recovery; at others the job trains."""


@dataclass(slots=True)
class _Ongoing:
    """A strike under way."""

    strike: Strike
    num_recoveries: int
    """Before it."""
    began_at: float = field(default_factory=time.monotonic)
    armed: list[tuple[WorkerHandle, Fault]] = field(default_factory=list)
    """Who will strike itself, and has not."""
    waiting: list[Fault] = field(default_factory=list)
    """What comes in the first step after the recovery."""
    struck: list[tuple[WorkerHandle, Fault]] = field(default_factory=list)
    for_service: list[Fault] = field(default_factory=list)
    threads: list[threading.Thread] = field(default_factory=list)
    """Wake workers, or start the service again."""

    def is_all_struck(self) -> bool:
        """Whether nothing is left to strike or to come back."""
        return not (self.armed or self.waiting or self.for_service or any(thread.is_alive() for thread in self.threads))


class Striker:
    """An observer of the agent; at most one strike is under way."""

    def __init__(self, run: Run, seed: int, service: ServiceProcess) -> None:
        self._run = run
        self._service = service
        self._random = random.Random(f"{seed} {run.name} victims")
        self._victims = Victims(run, self._random)
        self._left = deque(run.order(seed))
        self._ongoing: _Ongoing | None = None
        self._rest_from_step: int | None = None
        self.num_faults: dict[Kind, int] = dict.fromkeys(Kind, 0)
        """What struck indeed."""
        self.num_missed = 0
        self.labels: dict[int, str] = {}
        """What each recovery from a loss mends, by its place among the agent's recoveries."""

    @property
    def num_left(self) -> int:
        """Strikes that have not come to their end."""
        return len(self._left) + (self._ongoing is not None)

    def close(self) -> None:
        """Wait for everything that is to wake up or return."""
        for thread in self._ongoing.threads if self._ongoing is not None else ():
            thread.join()

    def __call__(self, agent: Agent) -> None:
        """Observe."""
        if self._ongoing is not None:
            self._follow_up(agent, self._ongoing)
        if self._ongoing is not None or not agent.losses or not _is_calm(agent):
            self._rest_from_step = None
            return
        step = max(agent.losses)
        if self._rest_from_step is None:
            self._rest_from_step = step
        for worker in self._victims.missing(agent):
            agent.invite(worker)
        if self._left and step - self._rest_from_step >= self._left[0].after_steps and self._can_begin(agent, self._left[0]):
            self._begin(agent, self._left.popleft())

    def is_rested(self, agent: Agent) -> bool:
        """Whether the job has trained for a step or more with nothing under way; workers may be on their way to it."""
        return self._rest_from_step is not None and max(agent.losses) > self._rest_from_step

    def is_over(self, agent: Agent) -> bool:
        """Whether all strikes came to their end, and everybody who was lost is back in the job."""
        plan = agent.decision.plan
        known = {*plan.workers, *(idle.worker for idle in plan.idle_workers)}
        is_complete = not agent.arriving and not self._victims.missing(agent) and known.issuperset(agent.alive)
        return self.num_left == 0 and is_complete

    def _can_begin(self, agent: Agent, strike: Strike) -> bool:
        """Whether enough workers have come back for all of the strike's victims to be spared."""
        faults = [fault for fault in (strike, *strike.then) if fault.kind not in (Kind.SERVICE, Kind.JOIN)]
        return all(self._victims.choose(agent, faults, ()))

    def _begin(self, agent: Agent, strike: Strike) -> None:
        self._rest_from_step = None
        self._ongoing = ongoing = _Ongoing(strike, len(agent.recoveries))
        begins_no_recovery = strike.kind in (Kind.SERVICE, Kind.JOIN)
        at_once = [fault for fault in strike.then if begins_no_recovery or fault.at in IN_RECOVERY]
        ongoing.waiting = [fault for fault in strike.then if fault not in at_once]
        ongoing.for_service = [fault for fault in at_once if fault.kind is Kind.SERVICE]
        if strike.kind is Kind.SERVICE:
            self._strike_service(ongoing)
        elif strike.kind is Kind.JOIN:
            agent.invite(self._victims.newcomer())
            self.num_faults[Kind.JOIN] += 1
        strikes_workers = () if begins_no_recovery else (strike,)
        self._arm(agent, ongoing, [*strikes_workers, *(fault for fault in at_once if fault.kind is not Kind.SERVICE)])

    def _arm(self, agent: Agent, ongoing: _Ongoing, faults: Sequence[Fault]) -> None:
        """Have workers strike themselves, each one of `faults`, such that no state is lost with all of them."""
        spoken_for = {handle.worker for handle, _ in ongoing.armed}
        for victims, fault in zip(self._victims.choose(agent, faults, spoken_for), faults, strict=True):
            if not victims:
                self.num_missed += 1
            for victim in victims:
                how = FaultKind.KILL if fault.kind in (Kind.KILL, Kind.HOST) else FaultKind.FREEZE
                handle = agent.handle(victim)
                handle.send(Arm((ArmedFault(worker=victim, at=fault.at, how=how),)))
                ongoing.armed.append((handle, fault))

    def _follow_up(self, agent: Agent, ongoing: _Ongoing) -> None:
        """Note what struck, strike what comes later, and end the strike once the job has recovered from all of it."""
        for handle, fault in [pair for pair in ongoing.armed if _has_struck(pair[0], ongoing.began_at)]:
            self._note(ongoing, handle, fault)
        for fault in [f for f in ongoing.for_service if agent.phase is SERVICE_PHASES.get(f.at, Phase.TRAINING)]:
            ongoing.for_service.remove(fault)
            self._strike_service(ongoing)
        fresh = agent.recoveries[ongoing.num_recoveries :]
        if ongoing.waiting and agent.phase is Phase.TRAINING and fresh and fresh[-1].regrouped_at is not None:
            faults, ongoing.waiting = ongoing.waiting, []
            ongoing.for_service += [fault for fault in faults if fault.kind is Kind.SERVICE]
            self._arm(agent, ongoing, [fault for fault in faults if fault.kind is not Kind.SERVICE])
        if time.monotonic() - ongoing.began_at > MISSED_SECONDS:
            self._give_up(agent, ongoing)
        if ongoing.is_all_struck() and _is_calm(agent) and all(_is_settled(agent, *pair) for pair in ongoing.struck):
            self.labels |= {ongoing.num_recoveries + n: ongoing.strike.label for n, r in enumerate(fresh) if r.lost}
            self._ongoing = None

    def _note(self, ongoing: _Ongoing, handle: WorkerHandle, fault: Fault) -> None:
        ongoing.armed.remove((handle, fault))
        ongoing.struck.append((handle, fault))
        is_hosts_first = fault.kind is not Kind.HOST or sum(other is fault for _, other in ongoing.struck) == 1
        self.num_faults[fault.kind] += is_hosts_first
        if fault.kind is Kind.WAKE:
            seconds = self._random.uniform(0.0, LONGEST_SLEEP_SECONDS)
            thread = threading.Thread(target=_wake, args=(handle, seconds), name="wakes-up")
            thread.start()
            ongoing.threads.append(thread)

    def _strike_service(self, ongoing: _Ongoing) -> None:
        ongoing.threads.append(self._service.restart(self._random.uniform(0.0, LONGEST_AWAY_SECONDS)))
        self.num_faults[Kind.SERVICE] += 1

    def _give_up(self, agent: Agent, ongoing: _Ongoing) -> None:
        self.num_missed += len(ongoing.armed) + len(ongoing.waiting) + len(ongoing.for_service)
        for handle, _ in ongoing.armed:
            if _is_here(agent, handle):
                handle.send(Arm(()))
        ongoing.armed.clear()
        ongoing.waiting.clear()
        ongoing.for_service.clear()


def _is_calm(agent: Agent) -> bool:
    """Whether the job trains, and has committed a step since the latest recovery."""
    return agent.phase is Phase.TRAINING and all(recovery.committed_at is not None for recovery in agent.recoveries[-1:])


def _is_here(agent: Agent, handle: WorkerHandle) -> bool:
    return handle.worker in agent.alive and agent.handle(handle.worker) is handle


def _has_struck(handle: WorkerHandle, since: float) -> bool:
    return handle.struck_at is not None and handle.struck_at >= since


def _is_settled(agent: Agent, handle: WorkerHandle, fault: Fault) -> bool:
    """Whether the struck worker is gone, or was woken in time and works."""
    return not _is_here(agent, handle) or (fault.kind is Kind.WAKE and not handle.is_stopped())


def _wake(handle: WorkerHandle, after_seconds: float) -> None:
    """Let a stopped process go on; by then it may be fenced, and its number another process's."""
    with suppress(ProcessLookupError, ValueError):
        descriptor = os.pidfd_open(handle.pid)
        try:
            time.sleep(after_seconds)
            signal.pidfd_send_signal(descriptor, signal.SIGCONT)
        finally:
            os.close(descriptor)
