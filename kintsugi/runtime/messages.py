"""What the agent and its workers say to each other; pickled over a pipe that only they hold."""

import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from kintsugi.core.decision import Migration
from kintsugi.core.errors import KintsugiError
from kintsugi.core.plan import Plan, Reduction
from kintsugi.runtime.checkpoints.manifest import FileRecord
from kintsugi.runtime.faults import Fault
from kintsugi.runtime.reach import Address
from kintsugi.runtime.selfgoverned.words import FromGovernor, ToGovernor
from kintsugi.runtime.verdicts import Slot
from kintsugi.runtime.workers.commit import CommitRecord, StepStatus

# From the agent to a worker. `attempt` counts reconfigurations that were begun; a higher one supersedes all lower ones.


@dataclass(frozen=True, slots=True)
class CallOff:
    """Leave the step or the reconfiguration and say how far you are."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Restore:
    """Take state from a checkpoint."""

    folder: Path
    layers: tuple[int, ...]
    """That are read by whoever is to hold them and does not hold them now."""
    is_whole: bool
    """Whether what workers hold is forgotten first: it is of another step."""


@dataclass(frozen=True, slots=True)
class Prepare:
    """Move to a plan: settle the interrupted step, connect the groups, transfer state; change nothing yet."""

    attempt: int
    plan: Plan
    actions: tuple[str, ...]
    """This worker's list in text form; empty for a worker without a slot."""
    places: tuple[int, ...]
    """Of each send and receive in that list: where its other end stands among the peer's messages with this worker."""
    digests: Mapping[str, str]
    """Of all workers' lists and places."""
    reductions: tuple[Reduction, ...]
    checksum: str
    members: tuple[str, ...]
    """Who takes part in the transfers, in rank order."""
    migration: Migration
    record: CommitRecord | None
    """Commit point that some survivor passed: whoever has not applied that step applies it now."""
    start_step: int
    """The step to train first."""
    is_initial: bool
    """Nobody has trained yet, or everything begins anew: every layer starts from its seed."""
    restore: Restore | None = None
    checkpoint_every: int | None = None
    """Steps; null where it is not known yet how often is best."""
    stop_step: int | None = None
    """The step before which a job ends that was concluded; null: its own end."""
    compared: tuple[Slot, ...] = ()
    """Who is to hold the same of which layers before anything moves."""
    is_unsaved: bool = False
    """Whether all is trained, and that is to be written down: who wrote it was lost, or it was not trusted."""

    def steps(self, num_steps: int) -> range:
        """What is to be trained of a job of `num_steps`."""
        return range(self.start_step, num_steps if self.stop_step is None else self.stop_step)


@dataclass(frozen=True, slots=True)
class Go:
    """All members are ready: swap the new state in and train."""

    attempt: int
    is_over: bool = False
    """Others may have trained, and that is called off already: swap, and do no more."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """A rendezvous key that another member published."""

    attempt: int
    key: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Collect:
    """Send a digest of every layer's state, and the parameters of some layers."""

    attempt: int
    layers: tuple[int, ...]
    """Those whose parameters are wanted."""


@dataclass(frozen=True, slots=True)
class Stop:
    """End the process."""


@dataclass(frozen=True, slots=True)
class Arm:
    """Strike at these points, instead of those that were armed before; for trying out what happens."""

    faults: tuple[Fault, ...]


@dataclass(frozen=True, slots=True)
class CheckpointEvery:
    """Ask for a checkpoint after so many steps."""

    steps: int


@dataclass(frozen=True, slots=True)
class Probe:
    """See which of these workers can be reached, beside whatever else is going on."""

    number: int
    addresses: Mapping[str, Address]
    timeout_seconds: float


ToWorker = CallOff | Prepare | Go | Delivered | Collect | Stop | Arm | CheckpointEvery | Probe | ToGovernor

# From a worker to the agent.


@dataclass(frozen=True, slots=True)
class Started:
    """The model is known; ready for a plan."""

    address: Address | None
    """Where others can try to reach this worker; null where its host's address does not exist."""
    traits: Mapping[str, str]
    """What of its job has to be the same for all workers (`likeness.traits`)."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Still here."""

    is_leaving: bool = False
    """Whether the process was asked to end (SIGTERM): it serves until it is let go."""


@dataclass(frozen=True, slots=True)
class Published:
    """A rendezvous key for the other members of its group."""

    attempt: int
    key: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Quiesced:
    """The answer to CallOff."""

    attempt: int
    status: StepStatus | None
    """Null where the worker holds no stage."""
    writing: tuple[tuple[int, int], ...] = ()
    """Attempt and step of the checkpoints of which its part is being written."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The answer to Prepare: everything is staged."""

    attempt: int
    regrouped_at: float
    transferred_at: float


@dataclass(frozen=True, slots=True)
class Resumed:
    """The first action of the first step of a plan begins."""

    attempt: int
    at: float


@dataclass(frozen=True, slots=True)
class StepDone:
    """A step is committed and applied here."""

    attempt: int
    step: int
    loss: float
    seconds: float
    at: float
    microbatches: tuple[int, ...]
    """How often the loss of each counted, over all workers: once each."""


@dataclass(frozen=True, slots=True)
class Finished:
    """All steps are done here."""

    attempt: int


@dataclass(frozen=True, slots=True)
class LinkBroken:
    """A message failed; waits for CallOff."""

    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class Differing:
    """Holders of a layer do not hold the same; waits for CallOff, or ends where it is the one that is wrong."""

    attempt: int
    step: int
    """Before which that was found: the next to apply."""
    layers: tuple[int, ...]
    wrong: tuple[str, ...]
    """Who holds something else than most; empty where nobody can tell who is right."""
    unsettled: tuple[int, ...]
    """Those of the layers of which nobody can tell who is right."""


@dataclass(frozen=True, slots=True)
class Collected:
    """The answer to Collect: SHA-256 of each layer's state, and packed parameters by layer."""

    attempt: int
    digests: Mapping[int, str]
    parameters: Mapping[int, tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Reached:
    """The answer to Probe."""

    number: int
    unreachable: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Failed:
    """The worker cannot go on and ends."""

    traceback: str
    error: Mapping[str, Any] | None
    """Kintsugi's own error as the contract's object; null where the trainer's code raised."""

    @classmethod
    def by(cls, error: BaseException) -> Self:
        """What ended it, as it was raised."""
        own = _with_notes(error) if isinstance(error, KintsugiError) else None
        return cls("".join(traceback.format_exception(error)), own)


def _with_notes(error: KintsugiError) -> dict[str, Any]:
    """As the contract's object, whose message says where it was raised, too: in which samples, say."""
    told = error.as_dict()
    return told | {"message": "; ".join([told["message"], *getattr(error, "__notes__", ())])}


@dataclass(frozen=True, slots=True, kw_only=True)
class PartWritten:
    """A worker's part of a checkpoint is on the disk."""

    attempt: int
    step: int
    """The next to train."""
    files: Mapping[str, FileRecord]
    snapshot_seconds: float
    """To copy the state."""
    backpressure_seconds: float
    """To wait for room before that."""
    write_seconds: float
    stall_seconds: float
    """Of these, what training waited for."""


@dataclass(frozen=True, slots=True)
class PartFailed:
    """A worker's part of a checkpoint could not be written; the training goes on."""

    attempt: int
    step: int
    reason: str
    is_late: bool = False
    """Whether the disk hangs: what it has of the part already it may have whole one day, and nothing can be removed now."""


@dataclass(frozen=True, slots=True)
class FaultInjected:
    """The worker is about to strike itself."""

    at: float


FromWorker = (
    Started
    | Heartbeat
    | Published
    | Quiesced
    | Ready
    | Resumed
    | StepDone
    | Finished
    | LinkBroken
    | Differing
    | Collected
    | Reached
    | PartWritten
    | PartFailed
    | Failed
    | FaultInjected
    | FromGovernor
)
