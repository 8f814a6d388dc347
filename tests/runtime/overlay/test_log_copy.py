"""The copy of a scheduler's log: where it ends it goes on, on a full disk, too."""

import pytest

from kintsugi.core.errors import InvalidInputError
from kintsugi.core.overlay_messages import OverlayEntry, OverlayLog
from kintsugi.runtime.overlay.standby import LogCopy
from tests.full_disk import room_for
from tests.planner.overlay.world import mesh


def entries(world):
    numbered = enumerate(world.log, 1)
    return tuple(OverlayEntry(number=n, event=event, at=at, term=1, generation=n) for n, (event, at) in numbered)


def test_the_copy_of_a_log_goes_on_where_it_ended(tmp_path):
    log = entries(mesh("w00", "w01"))
    path = tmp_path / "copy" / "log.jsonl"
    LogCopy(path).add(OverlayLog(entries=log[:2], last_number=4))
    path.write_text(path.read_text() + '{"half a li')
    copy = LogCopy(path)
    assert copy.last_number == 2
    copy.add(OverlayLog(entries=log[1:], last_number=4))
    assert len(path.read_text().splitlines()) == len(log)
    assert copy.last_term == 1
    copy.clear()
    assert (copy.last_number, LogCopy(path).last_number, path.read_text()) == (0, 0, "")
    path.write_text("nothing\n")
    with pytest.raises(InvalidInputError):
        LogCopy(path)


def test_what_does_not_fit_on_the_disk_is_copied_once_there_is_room(tmp_path):
    log = entries(mesh("w00", "w01"))
    copy = LogCopy(tmp_path / "log.jsonl")
    copy.add(OverlayLog(entries=log[:1], last_number=4))
    with room_for(copy.path.stat().st_size + 10), pytest.raises(OSError, match="only a part"):
        copy.add(OverlayLog(entries=log[1:], last_number=4))
    assert LogCopy(copy.path).last_number == 1
    copy.add(OverlayLog(entries=log[1:], last_number=4))
    assert LogCopy(copy.path).last_number == len(log) == copy.last_number
