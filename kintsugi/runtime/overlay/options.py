"""What a trainer may set about its place in the overlay."""

from dataclasses import dataclass
from enum import StrEnum

from kintsugi.core import checks
from kintsugi.core.errors import InvalidInputError


class Replicated(StrEnum):
    """What a joining worker gets from its neighbours."""

    EVERYTHING = "everything"
    """All parameters and buffers, the optimizer's state and the schedule's."""
    TRAINABLE = "trainable"
    """What training changes; frozen parameters are the same everywhere already, read from the same files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlayOptions:
    """Times, sizes and choices of a worker in the overlay; the defaults suit links of 100 Mbit/s and more."""

    replicated: Replicated = Replicated.EVERYTHING
    """What a joiner gets: `everything`, or what is `trainable`, where all have the rest from the same files."""
    averages_buffers: bool = True
    """Whether buffers (running statistics) are averaged along with the gradients, so that all replicas stay equal.

    Without it each worker keeps its own, and a joiner gets those of its sources.
    """
    compare_every_steps: int | None = 1
    """Reductions from one comparison of the workers' states to the next; null compares none.

    Who holds something else than most is gone on without; where nobody can tell who is right, all end.
    """
    copies_whole_state: bool = True
    """Whether a source copies all of the state rather than its own shares: it can then stand in for one that is lost."""
    chunk_bytes: int = 256 * 2**10
    """Of the pieces in which gradients and states travel; the same on all workers."""
    window_bytes: int = 16 * 2**20
    """Most bytes of a reduction that wait at a receiver that is not there yet."""
    max_waiting_bytes: int = 2**30
    """Reduced gradients that wait for a joiner: so much at it until its state is complete, and so much at each of its sources; once
    both are full the others wait for it. Two reductions at least.
    """
    max_neighbors: int = 4
    """Of a joiner that names none."""
    heartbeat_seconds: float = 1.0
    """From one sign of life to the next, told to the scheduler; a few of them fit in its `KINTSUGI_OVERLAY_TIMEOUT_SECONDS`."""
    ping_seconds: float = 1.0
    """After so long without a message on a link something is sent, so that silence means something."""
    link_timeout_seconds: float = 10.0
    """Silence after which a link is lost."""
    connect_timeout_seconds: float = 5.0
    """For one connection to a neighbour."""
    join_timeout_seconds: float = 600.0
    """From the constructor's call to a complete state; time in which this process is paused does not count."""
    reduction_timeout_seconds: float = 300.0
    """Longest wait without any progress in one reduction, slow workers included."""
    drain_timeout_seconds: float = 30.0
    """A worker that leaves goes after that time in any case, unless it is paused; a preemption notice gives about as long."""
    reads_signals: bool = True
    """Whether SIGINT and SIGTERM ask for a leave, the first time; the second has its usual effect. Only from the main thread.

    A handler of the script's own is called, too; what the script ignores asks for nothing.
    """

    def __post_init__(self) -> None:
        checks.settle_choice(self, Replicated, "replicated")
        for field in ("averages_buffers", "copies_whole_state", "reads_signals"):
            checks.flag(field, getattr(self, field))
        for field in ("chunk_bytes", "window_bytes", "max_waiting_bytes", "max_neighbors"):
            checks.count(field, getattr(self, field))
        if self.compare_every_steps is not None:
            checks.count("compare_every_steps", self.compare_every_steps)
        for field in _SECONDS:
            value = getattr(self, field)
            checks.seconds(field, value)
            if not value:
                raise InvalidInputError("must be above 0", field=field, value=value)
        if self.link_timeout_seconds <= 2 * self.ping_seconds:
            raise InvalidInputError(
                f"must be above twice ping_seconds ({self.ping_seconds:g}): one lost ping is no lost link",
                field="link_timeout_seconds",
                value=self.link_timeout_seconds,
            )


_SECONDS = (
    "heartbeat_seconds",
    "ping_seconds",
    "link_timeout_seconds",
    "connect_timeout_seconds",
    "join_timeout_seconds",
    "reduction_timeout_seconds",
    "drain_timeout_seconds",
)
