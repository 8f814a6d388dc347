"""An attempt of the agent to bring its workers onto a plan: its phases, and what has come in."""

import time
from dataclasses import dataclass, field
from enum import StrEnum
from functools import singledispatchmethod

from kintsugi.core.errors import StateLostError, some
from kintsugi.core.profile import Profile
from kintsugi.runtime.control.links import LinkProbe
from kintsugi.runtime.messages import Collected, Differing, Finished, FromWorker, LinkBroken, Quiesced, Reached, Ready, Resumed
from kintsugi.runtime.workers.commit import StepStatus


class Phase(StrEnum):
    """What the job is doing."""

    STARTING = "starting"
    QUIESCING = "quiescing"
    """Survivors leave the interrupted step while the next plan is decided."""
    PREPARING = "preparing"
    """Survivors connect their groups and transfer state."""
    TRAINING = "training"
    COLLECTING = "collecting"


@dataclass(slots=True)
class Attempt:
    """What has come in since an attempt to reach a plan began."""

    number: int
    phase_began_at: float = field(default_factory=time.monotonic)
    statuses: dict[str, StepStatus | None] = field(default_factory=dict)
    writing: dict[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    """Attempt and step of the checkpoints that survivors still write."""
    members: tuple[str, ...] = ()
    ready: dict[str, Ready] = field(default_factory=dict)
    resumed: dict[str, float] = field(default_factory=dict)
    finished: set[str] = field(default_factory=set)
    collected: dict[str, Collected] = field(default_factory=dict)
    broken: tuple[float, str] | None = None
    """When a link broke, and what its worker said."""
    differing: Differing | None = None
    """What a worker said of holders that do not hold the same."""
    probe: LinkProbe | None = None
    """The question whom the members can reach, while it is open."""
    asked_at: float = 0.0
    """When such a question was answered."""

    @singledispatchmethod
    def hear(self, message: FromWorker, worker: str) -> None:
        """Take in what a worker says about this attempt; what belongs to a superseded one does not count.

        Raises:
            TypeError: that is nothing a worker says about an attempt.
        """
        raise TypeError(f"{worker} sent {message!r}")

    @hear.register
    def _(self, message: Quiesced, worker: str) -> None:
        if message.attempt == self.number:
            self.statuses[worker], self.writing[worker] = message.status, message.writing

    @hear.register
    def _(self, message: Ready, worker: str) -> None:
        if message.attempt == self.number:
            self.ready[worker] = message

    @hear.register
    def _(self, message: Resumed, worker: str) -> None:
        if message.attempt == self.number:
            self.resumed[worker] = message.at

    @hear.register
    def _(self, message: Finished, worker: str) -> None:
        if message.attempt == self.number:
            self.finished.add(worker)

    @hear.register
    def _(self, message: LinkBroken, worker: str) -> None:
        if message.attempt == self.number and self.broken is None and self.members:
            self.broken = (time.monotonic(), f"{worker}: {message.reason}")

    @hear.register
    def _(self, message: Differing, _: str) -> None:
        if message.attempt == self.number:
            self.differing = message

    @hear.register
    def _(self, message: Collected, worker: str) -> None:
        if message.attempt == self.number:
            self.collected[worker] = message

    @hear.register
    def _(self, message: Reached, worker: str) -> None:
        if self.probe is not None:
            self.probe.take(worker, message)


def replicas_differ(differing: Differing, profile: Profile, *, can_go_back: bool) -> StateLostError:
    """Why a job ends whose replicas differ where nobody can tell which of them is right."""
    names = some([profile.layers[layer].name for layer in differing.unsettled])
    way_out = "train again, from the newest checkpoint" if can_go_back else "begin anew with run=..., for checkpoints to go back to"
    return StateLostError(
        f"replicas of {names} differ before step {differing.step}, and nobody can tell which of them is right: test the memory and "
        f"the processors of their hosts, and {way_out}",
        layers=differing.unsettled,
    )
