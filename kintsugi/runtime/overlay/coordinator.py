"""A trainer's place in a job that workers join and leave by themselves: four lines of a plain torch loop.

    coordinator = kintsugi.Coordinator(model, optimizer, service="http://scheduler:8000", job="digits")
    for batch in loader:
        loss(model(batch)).backward()
        coordinator.update()
        coordinator.check_state_replication()
        if coordinator.capture_exit_event():
            coordinator.request_node_exit()
            break

(Learning in Chaos, listing 1.)
"""

import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, cast

import torch
from torch import nn

from kintsugi.core import checks
from kintsugi.core.errors import InvalidInputError
from kintsugi.core.overlay import Overlay, WorkerState
from kintsugi.runtime.overlay import exits
from kintsugi.runtime.overlay.addresses import own_host, urls_of
from kintsugi.runtime.overlay.admission import Application, admit
from kintsugi.runtime.overlay.arguments import require_reachable, require_trainable
from kintsugi.runtime.overlay.committed import Committed
from kintsugi.runtime.overlay.deadline import Deadline
from kintsugi.runtime.overlay.flat_state import Schedule, atomic_shard_bytes
from kintsugi.runtime.overlay.greeting import Identity
from kintsugi.runtime.overlay.heard import HeardScheduler
from kintsugi.runtime.overlay.links import Links
from kintsugi.runtime.overlay.log_copy import LOG_FILE, require_log
from kintsugi.runtime.overlay.member import Member
from kintsugi.runtime.overlay.options import OverlayOptions
from kintsugi.runtime.overlay.scheduler import HttpScheduler, Scheduler
from kintsugi.runtime.overlay.standby import StandbyOptions
from kintsugi.runtime.overlay.succeeding import ballot_box
from kintsugi.runtime.overlay.trained import TrainedState
from kintsugi.runtime.presence import Presence


def _nothing() -> None:
    pass


class Coordinator:
    """Joins a job, and takes part in it until it leaves. Used from one thread, which is the one that trains.

    Args:
        model: built already; a joiner's is overwritten with the others' state before the constructor returns.
        optimizer: over parameters of the model; only those that require gradients are reduced.
        service: URL of the scheduler (`kintsugi serve`), several where others may take over, or a `Scheduler`.
        job: its name. The first worker to join begins it.
        worker: a name of its own within the job; host and process by default.
        neighbors: workers to link with; by default active ones as they come, and such that no single loss parts the workers.
        host: address at which neighbours call; by default the one from which this machine reaches the scheduler.
        port: at that address; 0 takes one that is free.
        advertised: `host:port` that the others call instead, where a relay or a translation of addresses lies between.
        schedules: learning-rate schedules, which step with the optimizer.
        before_step: called before each optimizer step, when `.grad` holds the mean, or is None where no worker had a gradient: to
            clip it, say. The same on all workers.
        key: shared by the job's workers; without it anybody who reaches the port may become a neighbour.
        token: for the scheduler; by default what `KINTSUGI_TOKEN` holds.
        standby: have this worker keep a copy of the scheduler's log, and go on in its place when a majority finds it dead.
        options: times and sizes.

    Raises:
        InvalidInputError: an argument makes no sense, the optimizer or a schedule keeps what cannot be sent, the optimizer needs a
            closure, the address is taken, or the name by the only worker that holds the state.
        ReconfigurationError: the others train another model or in another way, run another version, or cannot send their state.
        UnavailableError: scheduler, neighbours or state were not there in time, or nobody is left who holds the state.
        GivenUpError: it was asked to leave (Ctrl-C, SIGTERM, the leave button) before it took part.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        service: str | Sequence[str] | Scheduler,
        job: str,
        worker: str | None = None,
        neighbors: Sequence[str] | None = None,
        host: str | None = None,
        port: int = 0,
        advertised: str | None = None,
        schedules: Sequence[Schedule] = (),
        before_step: Callable[[], None] = _nothing,
        key: bytes = b"",
        token: str | None = None,
        standby: StandbyOptions | None = None,
        options: OverlayOptions | None = None,
    ) -> None:
        self.options = OverlayOptions() if options is None else options
        checks.instance("options", self.options, OverlayOptions)
        presence = Presence()
        deadline = Deadline(self.options.join_timeout_seconds, presence)
        checks.path_segment("job", job)
        self.worker = worker if worker is not None else f"{socket.gethostname()}-{os.getpid()}"
        checks.name("worker", self.worker)
        require_reachable(self.worker, neighbors, port, advertised, key)
        require_trainable(model, optimizer, schedules, before_step)
        self.trained = TrainedState(model, optimizer, self.options, schedules=schedules, before_step=before_step)
        state_bytes = self.trained.state_bytes
        urls = urls_of(service)
        if standby is not None:
            if not urls:
                raise InvalidInputError("needs the URL of the scheduler as service", field="standby")
            require_log(Path(standby.folder) / LOG_FILE)  # else the others would lose a worker that has just joined
        scheduler = HeardScheduler(HttpScheduler(urls, job, token=token) if urls else cast("Scheduler", service))
        host = host or own_host(urls)
        identity = Identity(job=job, worker=self.worker, key=key)
        ballot_box(identity, standby)  # what is no vote is refused before anybody is called
        self.links = Links(identity, self.options, host=host, port=port)
        application = Application(
            address=advertised or f"{host}:{self.links.port}",
            neighbors=neighbors,
            max_neighbors=self.options.max_neighbors,
            state_bytes=state_bytes,
            shard_bytes=atomic_shard_bytes(model, state_bytes),
            gradient_bytes=self.trained.vector_bytes,
        )
        exits.forget_exit_event()
        self._signals = exits.ExitSignals() if self.options.reads_signals else None
        self._has_left = False
        presence.begin()
        try:
            overlay = admit(scheduler, self.links, application, deadline)
            box = ballot_box(identity, standby)  # an earlier life of this worker may have voted until now
        except BaseException:
            self.links.close()
            scheduler.close()
            presence.close()
            self._give_signals_back()
            raise
        self._member = Member(
            self.links,
            self.trained,
            scheduler,
            overlay,
            box=box,
            standby=standby,
            options=self.options,
            asks_for_links=not neighbors,
        )
        try:
            self._member.begin(deadline)
            if standby is not None:
                self._member.succession.start(urls, token, standby)
        except BaseException:
            self.close()
            raise
        finally:
            presence.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def overlay(self) -> Overlay:
        """The newest overlay that this worker knows."""
        return self._member.agent.overlay

    @property
    def members(self) -> tuple[str, ...]:
        """The workers whose gradients count in the next reduction, in ascending order."""
        return tuple(sorted(self._member.rounds.effective.synchronization.order))

    @property
    def step(self) -> int:
        """Optimizer steps of the job so far."""
        return self.trained.steps

    @property
    def is_scheduler(self) -> bool:
        """Whether this worker runs the scheduler, in the place of one that died; it should be the last to leave."""
        return self._member.succession.is_scheduler

    @property
    def last(self) -> Committed | None:
        """The last reduction: whose gradients were in it, with which weights."""
        return self._member.rounds.last

    def digest(self) -> str:
        """SHA-256 of the state: equal on all replicas after the same step."""
        return self.trained.digest()

    def update(self, weight: float = 1.0) -> Committed:
        """Reduce the gradients over the overlay's links, and step the optimizer with their weighted mean: on all or on none.

        Args:
            weight: of this worker's gradients, its number of samples, say; 0 takes part and adds nothing.

        Raises:
            GivenUpError: the others go on without this worker; a new `Coordinator` joins again.
            WrongStateError: one of those, since it came to hold something else than most: its memory or a processor errs.
            DisagreementError: workers hold different states, and nobody can tell whose is right; all end.
            LostTrackError: it missed too much while it joined; a new `Coordinator` joins again.
            UnavailableError: nothing moved for too long.
            InvalidInputError: a parameter came to be trained since this was made.

        What `before_step`, the optimizer or a schedule raises comes through, and ends this worker's part: the others have the step.
        """
        self.trained.require_all_reduced()
        checks.seconds("weight", weight)
        return self._member.update(weight)

    def check_state_replication(self) -> tuple[str, ...]:
        """The workers that fetch state from this one at present; it is copied and sent beside the training."""
        return self._member.sources.joiners

    def capture_exit_event(self) -> bool:
        """Whether this worker was asked to leave: Ctrl-C, SIGTERM, or the leave button."""
        return exits.capture_exit_event() or self._member.agent.state is WorkerState.DRAINING

    def request_node_exit(self) -> None:
        """Leave the job: returns once the others go on without this worker, or after `drain_timeout_seconds`.

        Raises:
            WrongStateError: this worker came to hold something else than most: its model is not theirs.
            DisagreementError: workers hold different states, and nobody can tell whose is right.
        """
        if not self._has_left:
            self._has_left = True
            presence = Presence()
            presence.begin()
            try:
                self._member.leave(Deadline(self.options.drain_timeout_seconds, presence))
            finally:
                presence.close()
                self.close()

    def connect_link(self, worker: str) -> None:
        """Ask for a link with another worker of the job; it takes effect at the end of a step."""
        self._member.agent.ask_link(worker, is_wanted=True)

    def disconnect_link(self, worker: str) -> None:
        """Ask to give up the link with a neighbour; it takes effect at the end of a step."""
        self._member.agent.ask_link(worker, is_wanted=False)

    def close(self) -> None:
        """End everything at once, without a word to the others (who notice); `request_node_exit` leaves in order."""
        self._has_left = True
        try:
            self._member.close()
        finally:
            self._give_signals_back()

    def _give_signals_back(self) -> None:
        if self._signals is not None:
            self._signals.give_back()
