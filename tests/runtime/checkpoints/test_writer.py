"""A worker's writes beside its training: told of when they are done, and when the disk does not do them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

import pytest
import torch

from kintsugi.core.errors import CommunicationError
from kintsugi.runtime.checkpoints.recording import CheckpointOptions, Strategy
from kintsugi.runtime.checkpoints.writer import PartWriter
from kintsugi.runtime.messages import PartFailed, PartWritten
from tests.runtime.hung_disk import await_threads, hung

ATTEMPT = 1
LONG = 30.0
PARTS = {"layer-00000": {"weight": torch.ones(3)}}


class Disk:
    """A writer, what it tells, and a file that it touches before every part."""

    def __init__(self, folder: Path, strategy: Strategy) -> None:
        self.folder, self.touched = folder, folder / "touched"
        self.told: SimpleQueue[PartWritten | PartFailed] = SimpleQueue()
        options = CheckpointOptions(strategy=strategy, disk_timeout_seconds=1.0)
        self.writer = PartWriter(options, self.told.put, before_part=self._touch, sync=lambda: None)

    def _touch(self, *_: object) -> None:
        self.touched.open("w").close()

    def take(self, step: int, require_current: Callable[[], None] = lambda: None) -> None:
        self.writer.take(ATTEMPT, step, self.folder / f"step{step}", PARTS, require_current)

    def tells(self) -> tuple[int, bool | None]:
        """Of which step it tells next, and where it failed whether that is because the disk hangs."""
        message = self.told.get(timeout=LONG)
        return message.step, message.is_late if isinstance(message, PartFailed) else None


@pytest.fixture(params=Strategy)
def disk(request, tmp_path):
    made = Disk(tmp_path, request.param)
    yield made
    made.writer.close()
    await_threads("checkpoint")


def go_on() -> None:
    """Nothing calls the step off."""


def test_training_goes_on_beside_a_disk_that_hangs_and_checkpoints_once_it_answers(disk):
    with hung(disk.touched):
        for step in range(1, 6):
            disk.take(step)
        disk.writer.drain(go_on)
        late = [disk.tells() for _ in range(5)]
        assert sorted(late) == [(step, True) for step in range(1, 6)], "each is told of once"
        held_up = [step for _, step in disk.writer.in_flight]
        assert len(held_up) <= 2
    disk.writer._options = replace(disk.writer._options, disk_timeout_seconds=LONG)  # one that answers has its time
    assert [disk.tells() for _ in held_up] == [(step, None) for step in held_up], "what was copied is written in the end"
    disk.writer.drain(go_on)
    disk.take(6)
    assert disk.tells() == (6, None)


def test_why_it_failed_names_the_folder(disk):
    with hung(disk.touched):
        disk.take(1)
        disk.writer.drain(go_on)
        assert disk.told.get(timeout=LONG).reason == f"{disk.folder} has not answered for 1 s"


def test_the_end_waits_for_no_disk_that_hangs(tmp_path):
    disk = Disk(tmp_path, Strategy.OVERLAPPED)
    with hung(disk.touched):
        disk.take(1)
        disk.writer.drain(go_on)
        disk.writer.close()


def test_a_step_that_is_called_off_meanwhile_is_left(tmp_path):
    disk = Disk(tmp_path, Strategy.OVERLAPPED)

    def called_off() -> None:
        raise CommunicationError("called off")

    with hung(disk.touched):
        disk.take(1)
        disk.take(2)
        with pytest.raises(CommunicationError):
            disk.take(3, called_off)
    disk.writer.close()
