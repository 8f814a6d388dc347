"""Sampler, journals and checkpoints for a plain DistributedDataParallel script, without agent, plans or service.

Every rank writes its journal; rank 0 writes the checkpoints (ECRL, section 3.2). A script that ended early goes on from the
newest one, on as many ranks as divide the global batch, which stays the same:

    run = PlainRun("runs/digits", num_samples=len(data), global_batch_size=64, num_steps=500)
    start = run.restore(model, optimizer, scheduler)
    for step in range(start, run.num_steps):
        batch = [data[index] for index in run.samples(step)]
        ...                                         # forward, backward, optimizer.step(), scheduler.step()
        run.commit(step, loss)
    run.close()
"""

import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from kintsugi.core import checks
from kintsugi.core.codec import digest
from kintsugi.core.errors import CommunicationError, InvalidInputError, KintsugiError
from kintsugi.core.job import DEFAULT_MTBF_SECONDS
from kintsugi.core.logs import get_logger
from kintsugi.core.parent import end_with_parent
from kintsugi.runtime.checkpoints.advice import CheckpointCosts, CheckpointRecord
from kintsugi.runtime.checkpoints.checkpoint import CheckpointStore
from kintsugi.runtime.checkpoints.committing import commit_parts
from kintsugi.runtime.checkpoints.manifest import Checkpoint
from kintsugi.runtime.checkpoints.recording import Cadence, CheckpointOptions, require_steps_left
from kintsugi.runtime.checkpoints.snapshots import Entries, giving, random_entries, read_part, restore_random, worker_part
from kintsugi.runtime.checkpoints.writer import PartWriter
from kintsugi.runtime.clerk import Clerk, hung_named
from kintsugi.runtime.default_group import require_sums_in_host_memory
from kintsugi.runtime.disk import make_run_folder
from kintsugi.runtime.given import optimizer_of_model
from kintsugi.runtime.layout import CHECKPOINTS, JOURNALS
from kintsugi.runtime.messages import PartFailed, PartWritten
from kintsugi.runtime.plain_likeness import (
    from_all,
    require_alike,
    require_none_failed,
    run_traits,
    sum_of_all,
    sum_together,
    training_traits,
)
from kintsugi.runtime.plain_order import SchedulerWatch
from kintsugi.runtime.plain_state import Stateful, entries_of, load, tensors_of
from kintsugi.runtime.records.journal import Geometry, Journal, Pass, Source, next_life
from kintsugi.runtime.run_lock import RunLock
from kintsugi.runtime.sampler import Sampler
from kintsugi.runtime.torchrun.restarts import warn_of_kept_store

T = TypeVar("T")

_ATTEMPT = 1
_STATE = "state"
_HELD_UP = "a checkpoint is whole; the disk holds up its line in checkpoints.jsonl, or the removal of older ones"
_LAUNCHED = "TORCHELASTIC_RUN_ID"
"""Set by torchrun for the ranks that it starts."""


class PlainRun:
    """One life of a script on one rank."""

    def __init__(
        self,
        folder: str | Path,
        *,
        num_samples: int,
        global_batch_size: int,
        num_steps: int,
        seed: int = 0,
        checkpoints: CheckpointOptions | None = None,
        mtbf_seconds: float = DEFAULT_MTBF_SECONDS,
    ) -> None:
        """All ranks call it, after `torch.distributed.init_process_group`; one process alone needs none.

        The group sums losses in host memory: give it "gloo", or on CUDA devices "cpu:gloo,cuda:nccl".

        Args:
            folder: for journals and checkpoints; a later life of the same script goes on in it.
            num_samples: of the data set.
            global_batch_size: samples of a step over all ranks.
            num_steps: to train in all lives together.
            seed: of the order of samples.
            checkpoints: when and how they are written; by default beside the training, as often as is best for what they cost.
            mtbf_seconds: mean time between failures of the whole job, from which the best interval follows.

        Raises:
            InvalidInputError: a number is none that training comes of, the ranks are given different values or cannot share the
                global batch evenly, their group cannot sum in host memory, or the folder cannot be made.
            ConflictError: another life of the script goes on in the folder.
            UnavailableError: the folder's disk hangs.
        """
        if dist.is_initialized():
            require_sums_in_host_memory()
        if _LAUNCHED in os.environ:  # else ranks of a launcher that was killed train on, and keep the next life from the folder
            end_with_parent(signal.SIGKILL)  # at once where that one was killed while models were built
        self.num_steps = num_steps
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.world_size = dist.get_world_size() if dist.is_initialized() else 1
        self._folder = Path(folder).absolute()
        self._options = CheckpointOptions() if checkpoints is None else checkpoints
        checks.instance("checkpoints", self._options, CheckpointOptions)
        given = {"num_samples": num_samples, "global_batch_size": global_batch_size, "num_steps": num_steps, "seed": seed}
        require_alike(run_traits(self._options, folder=self._folder, **given))
        for name in ("num_samples", "global_batch_size", "num_steps"):
            checks.count(name, given[name])
        checks.whole("seed", seed)
        checks.mean_time("mtbf_seconds", mtbf_seconds)
        if self.rank == 0:
            warn_of_kept_store()
        self._sampler = Sampler(num_samples=num_samples, microbatch_size=1, num_microbatches=global_batch_size, seed=seed)
        self._sampler.shard(0, self.rank, self.world_size)
        self._geometry = Geometry(
            num_samples=num_samples, global_batch_size=global_batch_size, seed=seed, num_layers=1, num_steps=num_steps
        )
        self._cadence = Cadence()
        self._cadence.is_on, self._cadence.every = True, self._options.every_steps
        self._mtbf_seconds = mtbf_seconds
        self._costs = CheckpointCosts()
        self._new_records: SimpleQueue[CheckpointRecord] = SimpleQueue()
        """From the writer's thread."""
        self._step_seconds: list[float] = []
        self._next: int | None = None
        """The step to be committed next; null before `restore`."""
        self._lock = RunLock(self._folder)
        self._disk = Clerk("run")
        try:
            self._by_rank_0(self._take_folder)
            self._life = self._by_rank_0(lambda: next_life(self._folder / JOURNALS, self._geometry))
            self._journal = Journal(self._folder / JOURNALS, f"rank{self.rank}", self._life, self._geometry)
        except BaseException:  # nobody could close it
            self._lock.release()
            raise
        self._writer = PartWriter(self._options, self._commit_checkpoint, before_part=lambda *_: None, sync=self._journal.sync)
        self._is_closed = self._is_apart = False
        self.stall_seconds = 0.0
        """That training stood still for checkpoints so far."""

    def restore(self, model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Stateful | None = None) -> int:
        """Take the newest checkpoint over, if there is one; the step to train first. All ranks call it.

        Args:
            model: the module itself, not DistributedDataParallel around it.
            optimizer: of its parameters.
            scheduler: of the learning rate; anything with `state_dict` and `load_state_dict`.

        Raises:
            InvalidInputError: the ranks train different models or in different ways, the folder is another job's, more steps are
                trained in it than the job is to have, the optimizer has parameters that are not the model's, or the model, the
                scheduler or the optimizer keeps what cannot be written, or is not what the checkpoint is of.
            UnavailableError: the folder's disk hangs, or gives none of the checkpoints that are there.
        """
        with self._together():
            self._model, self._optimizer, self._scheduler = model, optimizer, scheduler
            optimizer_of_model(chain(model.parameters(), model.buffers()), optimizer)
            self._entries()  # what cannot be written is refused before anything is trained
            require_alike(training_traits(model, optimizer, scheduler))
            shapes = {name: [*value.shape] for name, value in tensors_of(model).items()}
            about = {f"shape of {name}": str(shape) for name, shape in shapes.items()}
            about |= {**self._geometry.described, "seed": str(self._geometry.seed)}
            self._digest = _digest(shapes, self._geometry)  # as the model begins: modules may keep more of extra state with time
            self._store = CheckpointStore(self._folder / CHECKPOINTS, job=self._digest, keep=self._options.keep, about=about)
            found = self._by_rank_0(self._newest)
            if found is not None:
                require_steps_left(found.step, self.num_steps, self._folder)
                self._load(found)
            start = self._sampler.step_of(found.manifest.sampler) if found is not None else 0
            source = Source.START if found is None else Source.CHECKPOINT
            self._first, self._next, self._began = start, start, time.monotonic()
            self._order = SchedulerWatch(scheduler)
            self._journal.resume(_ATTEMPT, step=start, source=source, world_size=self.world_size)
            return start

    def samples(self, step: int) -> tuple[int, ...]:
        """This rank's part of the step's samples, which are written down. Shape [global batch / world size].

        Raises:
            InvalidInputError: `restore` was not called.
        """
        self._require_restored()
        if step == self._next:
            self._order.begins(step)
        chosen = self._sampler.shard(step, self.rank, self.world_size)
        state = self._sampler.state(step)
        passed = Pass.of(self.rank * len(chosen), chosen, 0, 1)
        self._journal.passed(_ATTEMPT, step, [passed], epoch=state.epoch, cursor=state.cursor)
        return chosen

    def mean(self, loss: Tensor | float) -> float:
        """The mean over the global batch of a loss that is the mean over this rank's samples. All ranks call it.

        A scheduler that asks for it, as `ReduceLROnPlateau` does, is to be stepped before `commit`, too.
        """
        return sum_of_all(_number(loss)) / self.world_size

    def commit(self, step: int, loss: Tensor | float) -> float:
        """The step is applied on this rank; waits for all, and takes a checkpoint where one is due.

        What is not done by then, a scheduler's step for example, is not in the checkpoint.

        Args:
            step: that was trained.
            loss: mean over this rank's samples.

        Returns:
            The mean loss over the global batch.

        Raises:
            InvalidInputError: another rank commits another step, or it is not the one that comes next, by which a later life would
                begin too early or too late; on every rank.
        """
        self._require_restored()
        with self._together():
            self._step_seconds.append(time.monotonic() - self._began)
            self._look()
            advised = self._costs.every_steps or 0  # rank 0 alone knows; the others add nothing
            total, advised = sum_together(step, _number(loss), advised)
            self._require_next(step)
            mean = total / self.world_size
            if self._options.every_steps is None:
                self._cadence.every = advised or None
            self._journal.committed(_ATTEMPT, step, mean)
            if self._cadence.asks(step, is_first=step == self._first, is_last=step + 1 == self.num_steps):
                self._take(step + 1)
            self._next, self._began = step + 1, time.monotonic()
            self._order.committed()
            return mean

    def _require_restored(self) -> None:
        if self._next is None:
            raise InvalidInputError(
                "is to be called first, in a run's first life, too: it says which step comes next", field="restore"
            )

    def _require_next(self, step: int) -> None:
        if step != self._next:
            way_out = "commit every step once, in order, by the number that samples(step) was asked with"
            raise InvalidInputError(f"is not the one that comes next, {self._next}: {way_out}", field="step", value=step)

    def close(self) -> None:
        """Wait until everything is written, or the disk hangs. All ranks call it; what they do after the first time is nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._writer.drain(_go_on)
            self._writer.close()
            self._look()
            if not self._is_apart:
                self._barrier()
        finally:
            self._journal.close()
            self._lock.release()

    @contextmanager
    def _together(self) -> Iterator[None]:
        """What all ranks do; one that fails in it, alone or as the others, waits for them no more: they are elsewhere."""
        try:
            yield
        except BaseException:
            self._is_apart = True
            raise

    def _look(self) -> None:
        """Take in what checkpoints cost that are whole since."""
        while not self._new_records.empty():
            seconds = statistics.median(self._step_seconds)
            self._costs.take(self._new_records.get(), step_seconds=seconds, mtbf_seconds=self._mtbf_seconds)

    def _take(self, step: int) -> None:
        """Have rank 0 write the state before `step`; the training waits as long as the strategy says, unless the disk hangs."""
        began = time.monotonic()
        states = from_all(random_entries())
        parts: dict[str, Entries] = {}  # of the other ranks: they bring their journals to the disk
        if self.rank == 0:
            parts = {worker_part(f"rank{rank}"): state for rank, state in enumerate(states)}
            parts[_STATE] = self._entries()
        self._writer.take(_ATTEMPT, step, self._store.temporary(step, f"life{self._life}"), parts, _go_on)
        self._barrier()
        self.stall_seconds += time.monotonic() - began

    def _entries(self) -> Entries:
        return entries_of(self._model, self._optimizer, self._scheduler)

    def _load(self, found: Checkpoint) -> None:
        """All ranks, or none of them."""
        failure = None
        try:
            self._read(found)
        except Exception as error:
            failure = error
        require_none_failed(failure)

    def _read(self, found: Checkpoint) -> None:
        state, own = self._in_time(lambda: self._parts(found))
        load(state, self._model, self._optimizer, self._scheduler, warns=self.rank == 0)
        if own is not None:
            restore_random(own)

    def _parts(self, found: Checkpoint) -> tuple[Entries, Entries | None]:
        """The state, and that of this rank's random generators where the checkpoint has it.

        Raises:
            UnavailableError: the disk gave the files before, and does not now.
        """
        own, moved = found.folder / worker_part(f"rank{self.rank}"), self._disk.moved
        with giving(found.folder, self._folder):
            return (
                read_part(found.folder, _STATE, moved),
                read_part(found.folder, own.name, moved) if own.is_dir() else None,
            )

    def _commit_checkpoint(self, message: PartWritten | PartFailed) -> None:
        """In the writer's thread: everything is on the disk, or cannot be; in the main thread: the disk hangs."""
        temporary = self._store.temporary(message.step, f"life{self._life}")
        if isinstance(message, PartFailed):
            log, is_whole = get_logger("kintsugi.runtime"), message.step == self._store.committed_step
            what = _HELD_UP if is_whole else "a checkpoint could not be written; the previous one stays"
            log.warning(what, step=message.step, reason=message.reason)
            if not message.is_late:
                self._store.discard(temporary)
            return
        if self.rank != 0:
            return
        record = commit_parts(
            self._store,
            temporary,
            [message],
            job=self._digest,
            sampler=self._sampler.state(message.step),
            strategy=self._options.strategy,
            run=self._folder,
        )
        self._new_records.put(record)

    def _take_folder(self) -> None:
        """Rank 0 holds it for this life."""
        make_run_folder(self._folder, "run")
        self._lock.take()

    def _newest(self) -> Checkpoint | None:
        self._store.clear()
        return self._store.newest(self._disk.moved)

    def _by_rank_0(self, work: Callable[[], T]) -> T:
        """What comes of work on the disk that rank 0 does for all; where it is refused, fails or hangs, all ranks are told."""
        found = refusal = failure = None
        if self.rank == 0:
            try:
                found = self._in_time(work)
            except KintsugiError as error:
                refusal = error
            except Exception as error:
                failure = error
                refusal = CommunicationError(f"rank 0 could not go on: {type(error).__name__}: {error}", field="run")
        agreed: tuple[T, KintsugiError | None] = self._agreed((found, refusal))
        if failure is not None:
            raise failure
        if agreed[1] is not None:
            raise agreed[1]
        return agreed[0]

    def _in_time(self, work: Callable[[], T]) -> T:
        """What the disk says; where it does, no thread is left.

        Raises:
            UnavailableError: it hangs.
        """
        try:
            with hung_named(self._folder, "and train again in it"):
                return self._disk.asked_alone(work, self._options.disk_timeout_seconds)
        finally:
            self._disk.close(0.0)

    def _agreed(self, value: Any) -> Any:
        """What rank 0 says."""
        if not dist.is_initialized():
            return value
        said = [value]
        dist.broadcast_object_list(said, src=0)
        return said[0]

    def _barrier(self) -> None:
        if dist.is_initialized():
            dist.barrier()


def _number(loss: Tensor | float) -> float:
    """As exact as it is given: a tensor made of a Python number would be of torch's default type."""
    return float(loss.detach()) if isinstance(loss, Tensor) else float(loss)


def _digest(shapes: dict[str, list[int]], geometry: Geometry) -> str:
    """Of what a checkpoint has to fit to."""
    return digest([shapes, geometry.num_samples, geometry.global_batch_size, str(geometry.seed)])


def _go_on() -> None:
    """Nothing calls a plain script's steps off."""
