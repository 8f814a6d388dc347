"""Workers that come while the others train: asked in by a member, begun once the members agreed on them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kintsugi.core.logs import get_logger
from kintsugi.runtime.control.fleet import Fleet
from kintsugi.runtime.ring.messages import Joiner
from kintsugi.runtime.selfgoverned.course import Course
from kintsugi.runtime.selfgoverned.notes import Newcomer, Reachable
from kintsugi.runtime.selfgoverned.words import Admit, Begin, Refused


@dataclass(slots=True)
class Reception:
    """Of one job: the agent's part in a joining. It asks one member, in every generation again until the worker is one."""

    fleet: Fleet
    founders: Mapping[str, Reachable]
    """Where the workers are reached that the job started with."""
    _arrived: dict[str, Reachable] = field(default_factory=dict)
    """Where the latest process of each worker that was invited is reached, once it says so."""
    _hosts: dict[str, str | None] = field(default_factory=dict)
    _asked: dict[str, int] = field(default_factory=dict)
    """The generation in which each arrival was asked in last."""

    def expect(self, worker: str, host: str | None) -> None:
        """A process was started for a worker that comes back or is new."""
        self._arrived.pop(worker, None)
        self._asked.pop(worker, None)
        self._hosts[worker] = host

    def arrived(self, worker: str, at: Reachable) -> None:
        """A process that was started for a worker can be reached."""
        self._arrived[worker] = at

    def ask(self, course: Course) -> None:
        """Have a member bring up those who are ready; for as long as a generation trains, once in it."""
        for worker in tuple(self.fleet.arrivals):
            at = self._arrived.get(worker)
            if at is None or worker in course.membership.alive or self._asked.get(worker) == course.generation:
                continue
            self._asked[worker] = course.generation
            joiner = Joiner(worker, at.ring, Newcomer(self._hosts[worker], at.switchboard).text())
            self.fleet.handles[self._speaker(course)].send(Admit(course.generation, joiner))

    def begin(self, course: Course) -> None:
        """Have those begin that the members agreed on, and count on them; let those go that others went on without since."""
        known = {**self.founders, **course.came_from}
        addresses = {worker: known[worker] for worker in course.members}
        for worker in [worker for worker in self.fleet.arrivals if self._is_meant(worker, course)]:
            if worker in course.membership.alive:
                self.fleet.take_in(worker).send(Begin(course, addresses))
            else:
                self.fleet.dismiss(self.fleet.arrivals[worker], "the others went on without it")

    def refuse(self, refused: Refused) -> None:
        """There is no plan with an arrival: let it go."""
        get_logger("kintsugi.runtime").warning(
            "refused a worker that joined: no plan with it", worker=refused.worker, error=refused.reason
        )
        if (handle := self.fleet.arrivals.get(refused.worker)) is not None:
            self.fleet.dismiss(handle)

    def _is_meant(self, worker: str, course: Course) -> bool:
        """Whether it is this process that was agreed on: an earlier one may have made promises that this one knows nothing of."""
        at = self._arrived.get(worker)
        return at is not None and course.came_from.get(worker) == at

    def _speaker(self, course: Course) -> str:
        """A member that is there; where the latest plan's are all gone, the ring mends itself, and another generation comes."""
        members = (*course.decision.plan.workers, *self.fleet.handles)
        return next(worker for worker in members if worker in self.fleet.handles)
