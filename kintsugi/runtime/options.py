"""How workers run, and how patient the agent is with them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from kintsugi.core import checks
from kintsugi.core.errors import InvalidInputError
from kintsugi.runtime.checkpoints.recording import RunOptions
from kintsugi.runtime.faults import Fault
from kintsugi.runtime.records.tracing import TraceOptions
from kintsugi.runtime.ring.options import RingOptions


class TransportKind(StrEnum):
    """What carries activations and gradients between workers. State, and what they agree on, goes by gloo in any case."""

    GLOO = "gloo"
    """Through host memory, with tags."""
    GLOO_CHANNELS = "gloo-channels"
    """Through host memory as NCCL does between devices: a group for each direction of a pair, and messages matched by order.

    For trying that out; it has no merit of its own.
    """
    NCCL = "nccl"
    """Between CUDA devices, of which each worker has one to itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """How a worker process runs."""

    address: str = "127.0.0.1"
    """Of this host, where the other workers reach it."""
    addresses: Mapping[str, str] = field(default_factory=dict)
    """Of workers that have one of their own."""
    num_threads: int = 1
    """For torch's own arithmetic."""
    heartbeat_seconds: float = 0.1
    """From one sign of life to the next, told to the agent."""
    connect_timeout_seconds: float = 20.0
    """For connecting the groups of a generation."""
    operation_timeout_seconds: float = 600.0
    """For one message or reduction; failures are noticed and called off long before."""
    faults: tuple[Fault, ...] = ()
    """That happen on purpose, to try a job out: as `kintsugi.fail_at` makes them."""
    run: RunOptions | None = None
    """Where the run is recorded; null records nothing."""
    trace: TraceOptions | None = None
    """Where the times of actions are recorded; null records none."""
    ring: RingOptions = field(default_factory=RingOptions)
    """Patience of workers that govern themselves with each other."""
    compare_every_steps: int | None = 1
    """Steps from one comparison of what the holders of each layer hold to the next; a checkpoint's state is compared in any case.

    Who holds something else than most is gone on without. Null compares nothing once training has begun.
    """
    transport: TransportKind = TransportKind.GLOO
    """What carries activations and gradients: `gloo` through host memory, `nccl` between CUDA devices, each with one worker.

    `gloo-channels` tries out over gloo what is built for NCCL.
    """
    devices: Mapping[str, str] = field(default_factory=dict)
    """Of workers that compute on another device than their job says.

    Under NCCL `kintsugi.train` gives those of its cluster one each; one that joins under another name needs it said here.
    """

    def __post_init__(self) -> None:
        checks.name("address", self.address)
        for field_name in ("addresses", "devices"):
            checks.instance(field_name, getattr(self, field_name), Mapping, hint="what each worker has, by its name")
            for worker, own in getattr(self, field_name).items():
                checks.name(f"{field_name}.{worker}", own)
        checks.count("num_threads", self.num_threads)
        for field_name in ("heartbeat_seconds", "connect_timeout_seconds", "operation_timeout_seconds"):
            checks.positive(field_name, getattr(self, field_name))
        checks.instance("ring", self.ring, RingOptions)
        checks.settle_choice(self, TransportKind, "transport")
        if self.compare_every_steps is not None:
            checks.count("compare_every_steps", self.compare_every_steps)

    @property
    def compares(self) -> bool:
        """Whether replicas are compared once training has begun."""
        return self.compare_every_steps is not None

    def address_of(self, worker: str) -> str:
        """Where a worker listens."""
        return self.addresses.get(worker, self.address)


class Governance(StrEnum):
    """Who finds out that workers are lost, and has the others go on."""

    AGENT = "agent"
    """The host agent, which asks whoever decides."""
    RING = "ring"
    """The workers themselves, with plans that they hold; the agent starts them, and collects what they trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """How patient the agent is, and how its workers run."""

    worker: WorkerOptions = field(default_factory=WorkerOptions)
    """How the workers run: the options below."""
    governance: Governance = Governance.AGENT
    """Who decides generations: `agent`, or the workers themselves by a `ring`, which is what `membership` of `train` sets."""
    start_timeout_seconds: float = 120.0
    """For a worker process to know its model."""
    heartbeat_timeout_seconds: float = 5.0
    """Silence after which a worker counts as frozen and is fenced; a busy machine starves workers for a second or two."""
    stopped_timeout_seconds: float = 0.5
    """The same for a worker whose process is stopped, as the operating system tells."""
    quiesce_timeout_seconds: float = 10.0
    """For a survivor to leave the interrupted step, beyond twice the migration and three times its longest pass, as estimated,
    or the longest step that was seen where that is more. Whoever does not is fenced.
    """
    prepare_timeout_seconds: float = 300.0
    """For all members to be ready for a plan, beyond twice the time that its migration is estimated to take."""
    checkpoint_timeout_seconds: float = 60.0
    """For survivors to end writing a checkpoint that the job could go on from, once state is lost; also for one of what was
    trained, where the job is told to end early.
    """
    link_grace_seconds: float = 3.0
    """How long a broken link waits for the loss that explains it before the same workers regroup."""
    stall_timeout_seconds: float = 10.0
    """Without a step, beyond ten times the longest one, after which workers are asked whom they can reach.

    That disturbs nobody; a link that is cut in silence is found so.
    """
    probe_timeout_seconds: float = 2.0
    """For a worker to reach another."""
    collect_timeout_seconds: float = 300.0
    """For a holder to tell what it trained, once all steps are done. Whoever does not is fenced, and the others are asked again."""
    max_idle_attempts: int = 3
    """Attempts in a row without a loss or a step between them after which the job stops."""
    decision_timeout_seconds: float = 300.0
    """For the service to answer a failure; it may be restarting, or a proxy answer in its place. At a job's end it gets 6 s."""

    def __post_init__(self) -> None:
        checks.instance("worker", self.worker, WorkerOptions)
        checks.settle_choice(self, Governance, "governance")
        for field_name in _PATIENCE:
            checks.positive(field_name, getattr(self, field_name))
        checks.non_negative("link_grace_seconds", self.link_grace_seconds)
        checks.count("max_idle_attempts", self.max_idle_attempts)
        own, theirs = self.heartbeat_timeout_seconds, self.worker.heartbeat_seconds
        if own < 2 * theirs:
            message = f"must be at least twice worker.heartbeat_seconds ({theirs:g}): one late sign of life is no loss"
            raise InvalidInputError(message, field="heartbeat_timeout_seconds", value=own)


_PATIENCE = (
    "start_timeout_seconds",
    "heartbeat_timeout_seconds",
    "stopped_timeout_seconds",
    "quiesce_timeout_seconds",
    "prepare_timeout_seconds",
    "checkpoint_timeout_seconds",
    "stall_timeout_seconds",
    "probe_timeout_seconds",
    "collect_timeout_seconds",
    "decision_timeout_seconds",
)
