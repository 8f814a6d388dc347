"""What is known afterwards of a change that the workers made: its timeline, and the events for whoever decides."""

from dataclasses import dataclass, field

from kintsugi.core.membership import Event
from kintsugi.runtime.control.fleet import Fleet
from kintsugi.runtime.control.recovery import Recoveries
from kintsugi.runtime.control.roster import Roster
from kintsugi.runtime.processes import WorkerHandle
from kintsugi.runtime.selfgoverned.course import Course
from kintsugi.runtime.selfgoverned.words import Adopted


@dataclass(frozen=True, slots=True)
class Account:
    """Of one job."""

    fleet: Fleet
    roster: Roster
    recoveries: Recoveries
    _struck_at: dict[str, float | None] = field(default_factory=dict)
    _why: dict[str, str] = field(default_factory=dict)
    """Processes that the agent ended for a reason of its own."""
    _untold: list[Event] = field(default_factory=list)
    """What the workers found out, and whoever decides does not know."""
    _let_go: set[str] = field(default_factory=set)
    """Workers that leave in good order: nobody has anything of them any more."""

    def buried(self, handle: WorkerHandle, why: str = "") -> None:
        """A process has ended that was counted on; `why` where the agent had a reason to end it."""
        self._struck_at[handle.worker] = handle.struck_at
        self._why[handle.worker] = why

    def let_go(self, worker: str) -> None:
        """A worker that leaves is told to end, for others train with its state: its end is no loss."""
        self._let_go.add(worker)

    def note(self, before: Course, adopted: Adopted) -> None:
        """A generation follows another one: who was lost, who came, who leaves, and who was to leave and is needed after all."""
        course = adopted.course
        stays, stayed = course.staying, before.staying
        lost = [worker for worker in before.members if worker not in course.members and worker not in self._let_go]
        known = (*before.membership.alive, *stayed)
        leaving = [worker for worker in course.membership.draining if worker in known and worker not in stays]
        staying = [worker for worker in stays if worker not in known]
        joined = [worker for worker in course.membership.alive if worker not in before.members]
        self._let_go.intersection_update(set(course.members).difference(stays))
        if joined or leaving:
            self.recoveries.changed(joined, leaving, adopted.noticed_at, adopted.agreed_at)
        for worker in lost:
            self.recoveries.lost(worker, self._struck_when(worker), adopted.noticed_at)
        self._untold.extend(self.roster.failed(worker, self._why.pop(worker, "")) for worker in lost)
        self._untold.extend(self.roster.draining(worker) for worker in leaving)
        self._untold.extend(self.roster.staying(worker) for worker in staying)
        self._untold.extend(self.roster.joined(worker) for worker in joined)
        self.recoveries.note(planned_at=adopted.agreed_at, generation=course.generation, policy=course.decision.plan.policy.value)

    def untold(self) -> list[Event]:
        """The events since this was asked last, in their order."""
        events = self._untold[:]
        self._untold.clear()
        return events

    def _struck_when(self, worker: str) -> float | None:
        handle = self.fleet.handles.get(worker)
        return handle.struck_at if handle is not None else self._struck_at.get(worker)
