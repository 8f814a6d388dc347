"""Workers that were asked to leave: they train on, hand their state over with the next plan, and end by themselves."""

from collections.abc import Collection
from dataclasses import dataclass, field

from kintsugi.core.logs import get_logger
from kintsugi.runtime.control.decider import Decider
from kintsugi.runtime.control.fleet import Fleet
from kintsugi.runtime.control.roster import Roster
from kintsugi.runtime.messages import Stop
from kintsugi.runtime.processes import WorkerHandle


@dataclass(frozen=True, slots=True)
class Farewells:
    """Of one job's workers, from the notice (SIGTERM, or the agent's word) to the end of their processes."""

    fleet: Fleet
    roster: Roster
    decider: Decider
    _announced: set[WorkerHandle] = field(default_factory=set)
    _kept: set[WorkerHandle] = field(default_factory=set)
    """Without whom no recovery was possible."""
    _released: set[WorkerHandle] = field(default_factory=set)

    def announce(self, *, is_training: bool) -> None:
        """Ask for the plan without those who were asked to leave since; meanwhile they go on.

        For those who had to be kept it is asked again while the job trains: then nothing is the worse where there is none.
        """
        unheard = self._announced if is_training else self._announced | self._kept
        asked = [handle for handle in self.fleet.handles.values() if handle.is_leaving and handle not in unheard]
        if asked:
            self._announced.update(asked)
            self.decider.submit([self.roster.draining(handle.worker) for handle in asked])

    def keep(self) -> list[str]:
        """Those that were announced and are here stay for now."""
        kept = self._waiting()
        self._announced.difference_update(kept)
        self._kept.update(kept)
        return [handle.worker for handle in kept]

    def leaving(self) -> list[str]:
        """Workers that go as soon as a plan without them runs."""
        return [handle.worker for handle in self._waiting()]

    def release(self, busy: Collection[str]) -> None:
        """Let those go that are not among the `busy` workers, now that their state lies with others."""
        for handle in self._waiting():
            if handle.worker not in busy:
                get_logger("kintsugi.runtime").info("a worker leaves; its state is handed over", worker=handle.worker)
                self._released.add(handle)
                handle.send(Stop())

    def _waiting(self) -> list[WorkerHandle]:
        """Those who were asked to leave, and neither were let go nor lost since."""
        return [handle for handle in self.fleet.handles.values() if handle in self._announced - self._released]

    def has_gone(self, handle: WorkerHandle) -> bool:
        """Whether a process that ended, or does not answer, had been let go: nothing is lost with it, and it is forgotten."""
        if handle not in self._released:
            return False
        self.fleet.remove(handle)
        return True
