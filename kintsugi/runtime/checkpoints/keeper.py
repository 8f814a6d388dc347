"""The agent's side of checkpoints: commits one once all its parts are written, finds one again, and says how often is best.

Whatever touches the disk is done by a thread of its own. The agent waits for that only where it needs the answer, and not where the
disk hangs.
"""

import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TypeVar

from kintsugi.core.logs import get_logger
from kintsugi.runtime.checkpoints.advice import CheckpointCosts, CheckpointRecord
from kintsugi.runtime.checkpoints.committing import commit_parts
from kintsugi.runtime.checkpoints.manifest import Checkpoint
from kintsugi.runtime.checkpoints.parts import Key, Parts, Writing
from kintsugi.runtime.checkpoints.recording import RunOptions, require_steps_left
from kintsugi.runtime.clerk import Clerk, hung_named
from kintsugi.runtime.control.progress import Progress
from kintsugi.runtime.messages import PartFailed, PartWritten
from kintsugi.runtime.presence import Presence
from kintsugi.runtime.records.audit import read_history
from kintsugi.runtime.records.history import History

T = TypeVar("T")


class Keeper:
    """Keeps the checkpoints of one job; does nothing where it has no folder. One thread calls it."""

    def __init__(
        self, options: RunOptions | None, progress: Progress, *, compares: bool = True, presence: Presence | None = None
    ) -> None:
        """Nothing is kept yet.

        Args:
            options: what is written where; null where nothing is.
            progress: what was trained.
            compares: whether the holders of a layer compare their states, so that the latest one may not be right.
            presence: of this process; null where whoever calls `look` does so often.
        """
        self._options = options
        self._progress = progress
        self._log = get_logger("kintsugi.runtime")
        self._parts = Parts()
        self._committed_step = 0
        """Of the latest checkpoint; the thread that commits writes it."""
        self._restored_step = 0
        """Of the state that all took from a checkpoint, or from the seed."""
        self._removed_step: int | None = None
        """Of the latest checkpoint that was not trusted, until its step is written anew."""
        self._compares = compares
        self._awaited_step: int | None = None
        """Of the latest checkpoint, while an older one stays because its state was not compared yet."""
        self._disk = Clerk("keeper")
        self._is_closed = False
        self._commits: list[Future[CheckpointRecord | None]] = []
        self._asked_at = 0.0
        """For the first of them."""
        self._presence = Presence() if presence is None else presence
        self._is_held_up = False
        """Whether it was told that the disk does not answer."""
        self.costs = CheckpointCosts()
        self._is_urgent = False
        self._told: int | None = None
        if options is not None:
            self._store = options.store
            self._told = options.checkpoints.every_steps

    @property
    def is_on(self) -> bool:
        """Whether checkpoints are written."""
        return self._options is not None

    @property
    def kept_step(self) -> int:
        """Which step another life of the job would train first: that behind the newest checkpoint."""
        return max(self._committed_step, self._restored_step)

    def has_kept(self, steps: int) -> bool:
        """Whether another life would go on behind so many steps, from a state that all holders of its layers held alike."""
        return self.kept_step >= steps and (not self._compares or self._is_compared(self.kept_step))

    def lacks_end(self, step: int) -> bool:
        """Whether nothing is left to train from `step` on, and no checkpoint has that; one that is being written counts as none."""
        is_end = self._options is not None and step == self._options.geometry.num_steps
        return is_end and (self.kept_step < step or self._removed_step == step)

    @property
    def every_steps(self) -> int | None:
        """The interval as it is known now."""
        if self._options is None:
            return None
        return 1 if self._is_urgent else self._options.checkpoints.every_steps or self.costs.every_steps

    def hurry(self) -> None:
        """One is wanted after the next step: the job is told to end."""
        self._is_urgent = True

    def begin(self) -> Checkpoint | None:
        """What an earlier life of the job left: its newest checkpoint, and the losses of the steps in it.

        Raises:
            UnavailableError: the disk hangs, or gives none of those that are there.
            InvalidInputError: more steps are trained already than the job is to have.
        """
        if self._options is None:
            return None
        left = self._answer(self._left)
        if left is None:
            return None
        found, history = left
        require_steps_left(found.step, self._options.geometry.num_steps, self._options.folder)
        self._restored_step = found.step
        self._log.info("goes on from a checkpoint", step=found.step, run=str(self._options.folder))
        losses, microbatches = history.losses, history.microbatches
        for step in range(found.step):
            self._progress.adopt(step, losses.get(step, float("nan")), microbatches.get(step, ()))
        return found

    def newest(self) -> Checkpoint | None:
        """The newest undamaged checkpoint, once those that are complete are committed.

        Raises:
            UnavailableError: the disk hangs, or gives none of those that are there.
        """
        if self._options is None:
            return None
        found = self._answer(self._newest)
        self._take_done()
        return found

    def _answer(self, call: Callable[[], T]) -> T:
        """What the disk says, as long as it says anything."""
        assert self._options is not None
        with hung_named(self._options.folder, "and train again in it"):
            return self._disk.asked(call, self._options.checkpoints.disk_timeout_seconds)

    def is_hopeful(self, writing: Writing) -> bool:
        """Whether survivors, by what they were writing when they were asked, are about to complete a checkpoint."""
        return self._parts.is_hopeful(writing)

    def expect(self, attempt: int, workers: Collection[str]) -> None:
        """An attempt trains: who writes its checkpoints."""
        self._parts.expect(attempt, workers)

    def written(self, worker: str, message: PartWritten) -> None:
        """A part is on the disk; the last one completes its checkpoint. One that no checkpoint comes of is removed."""
        if self._options is None:
            return
        key = (message.attempt, message.step)
        if not self._parts.add(worker, message):
            self._discard(key)
        elif (parts := self._parts.take(key)) is not None:
            if self._removed_step == message.step:
                self._removed_step = None
            if not self._commits:
                self._asked_at = time.monotonic()
            self._commits.append(self._disk.do(partial(self._commit, message, parts, self._trusted_step)))
            if self._compares and not self._is_compared(message.step):
                self._awaited_step = message.step

    def failed(self, worker: str, message: PartFailed) -> None:
        """A part could not be written: that checkpoint will not be; the previous one stays."""
        key = (message.attempt, message.step)
        if not self._parts.is_over(key):  # else it was given up, and removed while this part was written
            self._log.warning(
                "a checkpoint could not be written; the previous one stays",
                worker=worker,
                step=message.step,
                reason=message.reason,
            )
        self._discard(key)

    def lost(self, worker: str) -> None:
        """A worker's parts that are not written will never be."""
        self._discard(*self._parts.lost(worker))

    def give_up_incomplete(self, writing: Writing) -> None:
        """Remove what can never be whole: who left its step before it copied its part, as survivors said of theirs, writes none."""
        self._discard(*self._parts.hopeless(writing))

    def distrust(self, step: int) -> None:
        """Holders of the state before `step` do not hold the same: a checkpoint of it may be wrong, and is removed.

        Not where all took that state from it: what they hold has changed since.
        """
        if self._options is None or self._is_compared(step):
            return
        self._discard(*self._parts.distrusted(step))
        self._removed_step = step
        self._disk.do(partial(self._remove, step))

    @property
    def _trusted_step(self) -> int | None:
        """The latest before which all held the same; null where that is not compared."""
        return max(self._restored_step, max(self._progress.losses, default=0)) if self._compares else None

    def _is_compared(self, step: int) -> bool:
        """Whether all held the same before `step`: it was committed since, or was begun from a checkpoint."""
        return step <= self._restored_step or step in self._progress.losses

    def forget(self, step: int) -> None:
        """The job goes back to before `step`: what is still being written is of steps that are undone."""
        self._discard(*self._parts.forget())
        self._committed_step = 0
        self._restored_step = step

    def look(self, *, tells: bool = True) -> int | None:
        """Take in commits that are done; an interval that is to be told to the workers, if there is a new one.

        Without `tells` it stays to be told.
        """
        self._take_done()
        self._tell_held_up()
        if self._awaited_step is not None and self._is_compared(self._awaited_step):
            self._retire(self._awaited_step)
        if not tells or self.every_steps == self._told:
            return None
        self._told = self.every_steps
        return self._told

    def _tell_held_up(self) -> None:
        """Where checkpoints whose parts are written wait for the disk; once, until one is committed again."""
        if self._options is None:
            return
        waits_seconds = self._options.checkpoints.disk_timeout_seconds
        left_seconds = self._disk.left_seconds(self._asked_at, waits_seconds, self._presence)
        is_held_up = bool(self._commits) and left_seconds <= 0.0
        if is_held_up and not self._is_held_up:
            self._log.warning(
                "the disk of the checkpoints does not answer; until it does none is committed",
                folder=str(self._options.folder),
                waited_seconds=waits_seconds,
            )
        self._is_held_up = is_held_up

    def conclude(self) -> None:
        """Everything is trained, and was compared after the last step."""
        if self._awaited_step is not None:
            self._retire(self._awaited_step)

    def _retire(self, trusted_step: int) -> None:
        self._awaited_step = None
        self._disk.do(partial(self._store.retire, trusted_step))

    def close(self) -> None:
        """Commit what is complete, and remove the rest; a disk that hangs is left with both. Once."""
        if self._is_closed:
            return
        self._is_closed = True
        self._discard(*self._parts.pending)
        if self._options is not None:
            self._disk.do(self._store.clear)  # of what nobody told that it is written
            waits_seconds = self._options.checkpoints.disk_timeout_seconds
            if not self._disk.close(waits_seconds):
                self._log.warning(
                    "the disk of the checkpoints does not answer; the last ones may be missing",
                    folder=str(self._options.folder),
                    waited_seconds=waits_seconds,
                )
        self._take_done()

    def _take_done(self) -> None:
        done = [commit for commit in self._commits if commit.done()]
        self._commits = [commit for commit in self._commits if not commit.done()]
        for commit in done:
            self._take(commit.result())

    def _take(self, record: CheckpointRecord | None) -> None:
        if record is None:
            return
        assert self._options is not None
        self.costs.take(record, step_seconds=self._progress.median_seconds, mtbf_seconds=self._options.mtbf_seconds)

    def _discard(self, *keys: Key) -> None:
        for key in keys:
            self._parts.give_up(key)
            self._disk.do(partial(self._store.discard, self._temporary(key)))

    def _temporary(self, key: Key) -> Path:
        assert self._options is not None
        attempt, step = key
        return self._store.temporary(step, self._options.tag(attempt))

    # In the disk's thread.

    def _left(self) -> tuple[Checkpoint, History] | None:
        assert self._options is not None
        self._store.clear()
        found = self._newest()
        return (found, read_history(self._options.folder)) if found is not None else None

    def _remove(self, step: int) -> None:
        self._store.remove(step)
        if self._committed_step == step:
            self._committed_step = self._store.newest_step

    def _newest(self) -> Checkpoint | None:
        return self._store.newest(self._disk.moved)

    def _commit(self, message: PartWritten, parts: Mapping[str, PartWritten], trusted_step: int | None) -> CheckpointRecord | None:
        """Nothing comes of one that a later one has overtaken, whose last part was slow."""
        assert self._options is not None
        temporary = self._temporary((message.attempt, message.step))
        if message.step < self._committed_step:
            self._store.discard(temporary)
            return None
        try:
            record = commit_parts(
                self._store,
                temporary,
                parts.values(),
                job=self._options.job,
                sampler=self._options.sampler.state(message.step),
                strategy=self._options.checkpoints.strategy,
                run=self._options.folder,
                trusted_step=trusted_step,
            )
        except OSError as error:
            self._log.warning("a checkpoint could not be committed; the previous one stays", step=message.step, reason=str(error))
            self._store.discard(temporary)
            return None
        self._committed_step = message.step
        return record
