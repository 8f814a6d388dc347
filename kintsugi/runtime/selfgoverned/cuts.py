"""Where nothing moves in a ring and everybody lives: who is cut off from whom, and who has to go so that all others can talk.

The ring's own connections lead from each member to the next; messages of a step go between others, too, and where those are dropped
in silence nobody is silent. So the members are asked whom they can reach, as where an agent decides.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass

from kintsugi.core.logs import get_logger
from kintsugi.core.plan import Plan
from kintsugi.runtime.control.fleet import Fleet
from kintsugi.runtime.control.links import LinkProbe
from kintsugi.runtime.messages import Reached
from kintsugi.runtime.processes import WorkerHandle


@dataclass(slots=True)
class Cuts:
    """Of one job."""

    fleet: Fleet
    timeout_seconds: float
    """For a worker to reach another."""
    looked_at: float = 0.0
    """When the members were last heard about it, or began; on the monotonic clock."""
    _probe: LinkProbe | None = None
    _num_questions: int = 0

    @property
    def is_asking(self) -> bool:
        """Whether answers are waited for."""
        return self._probe is not None

    def ask(self, members: Iterable[str]) -> None:
        """Ask the members whom they can reach, which disturbs no training."""
        self._num_questions += 1
        handles = tuple(self.fleet.handles[worker] for worker in members if worker in self.fleet.handles)
        self._probe = LinkProbe(self._num_questions, handles, self.timeout_seconds)
        self._probe.ask()

    def take(self, worker: str, answer: Reached) -> None:
        """Take an answer in."""
        if self._probe is not None:
            self._probe.take(worker, answer)

    def cut_off(self, applied: Plan) -> tuple[WorkerHandle, ...]:
        """Workers that have to go, once all have answered, or could have; `applied` says where the state lies."""
        probe = self._probe
        if probe is None or not probe.is_over():
            return ()
        self._probe, self.looked_at = None, time.monotonic()
        lost = probe.cut_off(applied, self.fleet.counts_on)
        if lost:
            links = sorted({tuple(sorted((worker, other))) for worker, others in probe.unreachable.items() for other in others})
            log = get_logger("kintsugi.runtime")
            log.warning("messages between workers get lost in silence", links=links, ended=[handle.worker for handle in lost])
        return lost
