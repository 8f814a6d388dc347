"""The copy of a scheduler's log: where it ends it goes on, on a full disk, too."""

import threading

import pytest

from kintsugi.core.errors import InvalidInputError, UnavailableError
from kintsugi.core.overlay_messages import OverlayEntry, OverlayLog
from kintsugi.runtime import disk
from kintsugi.runtime.overlay import log_copy
from kintsugi.runtime.overlay.greeting import Identity
from kintsugi.runtime.overlay.log_copy import LogCopy, require_log
from kintsugi.runtime.overlay.standby import StandbyOptions
from kintsugi.runtime.overlay.succeeding import ballot_box
from tests.full_disk import room_for
from tests.patience import PATIENCE_SECONDS, eventually
from tests.planner.overlay.world import mesh
from tests.runtime.hung_disk import hung


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


def removed(path):
    path.unlink()


def removed_with_its_folder(path):
    path.unlink()
    path.parent.rmdir()


def cut_off(path):
    path.write_bytes(path.read_bytes()[:-20])


def older(path):
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])


@pytest.mark.parametrize("damage", [removed, removed_with_its_folder, cut_off, older])
def test_a_copy_that_was_damaged_meanwhile_is_begun_anew(tmp_path, damage):
    """It was written on behind a hole, or never again; no service starts on such a log."""
    log = entries(mesh("w00", "w01"))
    copy = LogCopy(tmp_path / "copy" / "log.jsonl")
    copy.add(OverlayLog(entries=log[:2], last_number=4))
    damage(copy.path)
    copy.add(OverlayLog(entries=log[2:], last_number=4))
    assert copy.last_number == 0
    copy.add(OverlayLog(entries=log, last_number=4))
    assert LogCopy(copy.path).last_number == len(log)


def changed(path):
    written = path.read_bytes()
    path.write_bytes(written.replace(b"w01", b"w02"))


def torn(path):
    written = path.read_bytes()
    path.write_bytes(written[:40] + bytes(len(written) - 40))


@pytest.mark.parametrize("damage", [removed, cut_off, older, changed, torn])
def test_nothing_of_a_damaged_copy_is_gone_on_from(tmp_path, damage):
    log = entries(mesh("w00", "w01"))
    copy = LogCopy(tmp_path / "log.jsonl")
    copy.add(OverlayLog(entries=log, last_number=4))
    copy.require_whole()
    assert copy.last_number == len(log)
    damage(copy.path)
    copy.require_whole()
    assert (copy.last_number, copy.path.read_text()) == (0, "")


def test_what_a_full_disk_kept_of_a_line_is_cut_off_before_the_next(tmp_path):
    log = entries(mesh("w00", "w01"))
    copy = LogCopy(tmp_path / "log.jsonl")
    copy.add(OverlayLog(entries=log[:1], last_number=4))
    with copy.path.open("a") as file:
        file.write("x" * 100_000)
    copy.add(OverlayLog(entries=log[1:], last_number=4))
    copy.require_whole()
    assert LogCopy(copy.path).last_number == len(log) == copy.last_number


def test_a_disk_that_hangs_is_told_and_its_lines_are_kept_once_it_answers(tmp_path, monkeypatch):
    """Whoever waited for it stood by no more, and nobody knew."""
    monkeypatch.setattr(log_copy, "_DISK_SECONDS", 0.05)
    log, answers, write = entries(mesh("w00", "w01")), threading.Event(), log_copy.append_whole
    copy = LogCopy(tmp_path / "log.jsonl")
    monkeypatch.setattr(log_copy, "append_whole", lambda *told, **how: answers.wait(PATIENCE_SECONDS) and write(*told, **how))
    told = OverlayLog(entries=log[:1], last_number=4)
    for call, why in ((lambda: copy.add(told), "for 0.05 s"), (copy.clear, "an earlier"), (copy.require_whole, "an earlier")):
        with pytest.raises(OSError, match=f"the disk has not answered {why}"):
            call()
    answers.set()
    assert eventually(lambda: copy.last_number == 1)


def test_a_log_whose_disk_hangs_is_told_before_anybody_is_called(tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "_ANSWER_SECONDS", 0.05)
    with hung(tmp_path / "log.jsonl"), pytest.raises(UnavailableError, match=r"standby.folder: has not answered for 0.05 s"):
        require_log(tmp_path / "log.jsonl")
    path = tmp_path / "job-w00.ballot.json"
    with hung(path), pytest.raises(UnavailableError, match=r"standby.folder: has not answered for 0.05 s"):
        ballot_box(Identity(job="job", worker="w00", key=b""), StandbyOptions(folder=tmp_path))
