"""Strikes at regular distances: workers are killed or frozen, and come back later."""

import random
from dataclasses import dataclass, field

from benchmarks.trouble.campaign import Fault, Kind, Run, Strike
from benchmarks.trouble.victims import Victims
from kintsugi.runtime.control.agent import Agent
from kintsugi.runtime.control.attempt import Phase
from kintsugi.runtime.faults import Fault as ArmedFault
from kintsugi.runtime.faults import FaultKind, FaultPoint
from kintsugi.runtime.messages import Arm

DP, PP = 2, 3
AWAY_RATIO = 0.4
"""Share of the steps between two strikes for which a lost worker is away."""
KINDS = (
    Strike(kind=Kind.KILL, at=FaultPoint.FORWARD),
    Strike(kind=Kind.KILL, at=FaultPoint.BACKWARD),
    Strike(kind=Kind.KILL, at=FaultPoint.REDUCE),
    Strike(kind=Kind.KILL, at=FaultPoint.COMMIT),
    Strike(kind=Kind.KILL, at=FaultPoint.APPLIED),
    Strike(kind=Kind.FREEZE, at=FaultPoint.BACKWARD),
    Strike(kind=Kind.KILL, at=FaultPoint.FORWARD, then=(Fault(kind=Kind.KILL, at=FaultPoint.BACKWARD),)),
    Strike(kind=Kind.KILL, at=FaultPoint.BACKWARD, then=(Fault(kind=Kind.KILL, at=FaultPoint.TRANSFER),)),
)
"""What strikes, again and again in an order by the seed."""


@dataclass(slots=True)
class Troubles:
    """An observer that strikes workers at given steps, and has them come back later."""

    num_steps: int
    num_strikes: int
    seed: int = 0
    struck_at: list[int] = field(default_factory=list)
    """Steps at which a strike was ordered; workers strike themselves within the next one."""
    strength: list[tuple[int, int]] = field(default_factory=list)
    """Step from which on so many workers train."""
    _left: list[Strike] = field(init=False)
    _victims: Victims = field(init=False)

    def __post_init__(self) -> None:
        repeat = -(-self.num_strikes // len(KINDS))
        strikes = tuple(strike.model_copy(update={"repeat": repeat}) for strike in KINDS)
        run = Run(name="convergence", dp=DP, pp=PP, strikes=strikes)
        self._left = list(run.order(self.seed))[: self.num_strikes]
        self._victims = Victims(run, random.Random(self.seed))

    @property
    def spacing(self) -> int:
        """Steps from one strike to the next."""
        return self.num_steps // (self.num_strikes + 1)

    def __call__(self, agent: Agent) -> None:
        """Observe."""
        step = max(agent.losses, default=-1) + 1
        if agent.phase is not Phase.TRAINING or any(r.committed_at is None for r in agent.recoveries[-1:]):
            return
        workers = len(agent.decision.plan.workers)
        if not self.strength or self.strength[-1][1] != workers:
            self.strength.append((step, workers))
        since = step - self.struck_at[-1] if self.struck_at else 0
        if self.struck_at and since >= AWAY_RATIO * self.spacing:
            for worker in self._victims.missing(agent):
                agent.invite(worker)
        if self._left and step >= (len(self.struck_at) + 1) * self.spacing and not agent.arriving:
            self._strike(agent, step)

    def _strike(self, agent: Agent, step: int) -> None:
        """Have workers strike themselves, such that every layer keeps a holder; wait where too few are here for that."""
        strike = self._left[0]
        faults = (strike, *strike.then)
        victims = list(self._victims.choose(agent, faults, ()))
        if not all(victims):
            return
        self._left.pop(0)
        self.struck_at.append(step)
        for (victim,), fault in zip(victims, faults, strict=True):
            how = FaultKind.FREEZE if fault.kind is Kind.FREEZE else FaultKind.KILL
            agent.handle(victim).send(Arm((ArmedFault(worker=victim, at=fault.at, how=how),)))
