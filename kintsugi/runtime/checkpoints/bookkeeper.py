"""A worker's side of the run's folder: its journal, its part of every checkpoint, and the state it takes from one."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from kintsugi.core.plan import Plan
from kintsugi.runtime.checkpoints.recording import Cadence, Recorder, RunOptions
from kintsugi.runtime.checkpoints.snapshots import (
    Entries,
    giving,
    layer_entries,
    layer_part,
    random_entries,
    read_layers,
    read_part,
    restore_random,
    worker_part,
    writers,
)
from kintsugi.runtime.checkpoints.writer import PartWriter
from kintsugi.runtime.clerk import Clerk, hung_named
from kintsugi.runtime.faults import FaultPoint, FaultScript
from kintsugi.runtime.messages import FromWorker, Prepare, Restore
from kintsugi.runtime.models import TrainingJob
from kintsugi.runtime.records.journal import Journal, Source
from kintsugi.runtime.workers.state import ModelState
from restorer.staging import ArrivedState

T = TypeVar("T")


class Bookkeeper:
    """Does nothing where the job has no folder."""

    def __init__(self, worker: str, options: RunOptions | None, faults: FaultScript, tell: Callable[[FromWorker], None]) -> None:
        self._worker = worker
        self._options = options
        self._faults = faults
        self._journal: Journal | None = None
        self.cadence = Cadence()
        self._disk = Clerk("reader")
        self._writer: PartWriter | None = None
        if options is not None:
            self.cadence.is_on = True
            self._store = options.store
            self._writer = PartWriter(options.checkpoints, tell, before_part=self._before_part, sync=self._sync)

    def recorder(self, message: Prepare, job: TrainingJob) -> Recorder | None:
        """For the executor of an attempt; none where nothing is recorded."""
        if self._options is None:
            return None
        self.cadence.every = message.checkpoint_every
        if self._journal is None:
            self._journal = self._options.journal(self._worker)
        return Recorder(self._journal, self.cadence, self._options.sampler, message.attempt, message.steps(job.num_steps))

    def resumed(self, message: Prepare) -> None:
        """The state that was staged for an attempt is in place."""
        if self._journal is not None:
            generation, world_size = message.plan.generation, len(message.plan.workers)
            self._journal.resume(
                message.attempt, step=message.start_step, source=_source(message), generation=generation, world_size=world_size
            )

    def take(self, attempt: int, step: int, plan: Plan, state: ModelState, require_current: Callable[[], None]) -> None:
        """Copy this worker's part of the state before `step`, and have it written.

        Raises:
            CommunicationError: the attempt was called off.
        """
        if self._writer is None or self._options is None:
            return
        parts = {layer_part(layer): layer_entries(state, layer) for layer in writers(plan)[self._worker]}
        parts[worker_part(self._worker)] = random_entries()
        self._writer.take(attempt, step, self._store.temporary(step, self._options.tag(attempt)), parts, require_current)

    def drain(self, require_current: Callable[[], None]) -> None:
        """Wait until everything is written.

        Raises:
            CommunicationError: the attempt was called off.
        """
        if self._writer is not None:
            self._writer.drain(require_current)

    @property
    def in_flight(self) -> tuple[tuple[int, int], ...]:
        """Attempt and step of what is being written."""
        return self._writer.in_flight if self._writer is not None else ()

    def read(
        self, restore: Restore, layers: Sequence[int], held: ModelState | None, require_current: Callable[[], None]
    ) -> ArrivedState:
        """What a checkpoint has of `layers` and this worker does not hold; whole ones set its random generators back.

        Raises:
            CommunicationError: the attempt was called off.
            UnavailableError: the disk hangs, or gives no more what was compared.
        """
        if restore.is_whole and (own := self._given(restore, partial(self._own_part, restore.folder))) is not None:
            restore_random(own)
        has = held.modules if held is not None else ()
        arrived: ArrivedState = {}
        for layer in layers:
            if layer in restore.layers and layer not in has:
                require_current()
                arrived |= self._given(restore, partial(read_layers, restore.folder, [layer], self._disk.moved))
        return arrived

    def _own_part(self, checkpoint: Path) -> Entries | None:
        own = worker_part(self._worker)
        return read_part(checkpoint, own, self._disk.moved) if (checkpoint / own).is_dir() else None

    def _given(self, restore: Restore, call: Callable[[], T]) -> T:
        assert self._options is not None
        folder, waits_seconds = self._options.folder, self._options.checkpoints.disk_timeout_seconds
        with giving(restore.folder, folder), hung_named(folder, "and train again in it"):
            return self._disk.asked_alone(call, waits_seconds)

    def _before_part(self, step: int, written: Sequence[Path] | None) -> None:
        if written is not None:
            data = [path for path in written if path.suffix == ".distcp"]
            self._faults.strike_if(FaultPoint.CHECKPOINT, step - 1, written=data)

    def _sync(self) -> None:
        if self._journal is not None:
            self._journal.sync()


def _source(message: Prepare) -> Source:
    if message.is_initial:
        return Source.START
    return Source.CHECKPOINT if message.restore is not None and message.restore.is_whole else Source.MEMORY
