"""Checkpoints are whole or not there, damage is found, and the previous one is used, whatever happens to the files."""

import errno
import hashlib
import itertools
import json
import os
import resource
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from kintsugi.core import codec
from kintsugi.core.errors import InvalidInputError, UnavailableError
from kintsugi.runtime import disk
from kintsugi.runtime.checkpoints import checkpoint, manifest
from kintsugi.runtime.checkpoints.checkpoint import CheckpointStore
from kintsugi.runtime.checkpoints.manifest import DamagedCheckpointError, FileRecord, Manifest
from kintsugi.runtime.checkpoints.snapshots import read_part, write_part
from kintsugi.runtime.sampler import SamplerState
from tests.core.refusals import refuses

MANIFEST = Manifest(step=0, job="a", epoch=1, cursor=2, seed=str(2**62 + 1))


def store_at(folder: Path, keep: int = 2) -> CheckpointStore:
    return CheckpointStore(folder / "checkpoints", job="a", keep=keep)


def write(store: CheckpointStore, step: int, *, trusted_step: int | None = None):
    """A checkpoint with two parts whose values tell its step."""
    temporary = store.temporary(step, "test")
    files = {}
    for part in ("layer-00000", "worker-w00"):
        files |= write_part(temporary, part, {"value": torch.full((50,), float(step)), "plain": step})
    return store.commit(temporary, replace(MANIFEST, step=step, files=files), trusted_step=trusted_step)


def value(found) -> float:
    return float(read_part(found.folder, "layer-00000")["value"][0])


@pytest.fixture
def store(tmp_path):
    made = store_at(tmp_path)
    write(made, 3)
    write(made, 5)
    return made


def folder(store: CheckpointStore) -> Path:
    return store.newest().folder.parent


def test_the_newest_is_found_again(store, tmp_path):
    newest = store_at(tmp_path).newest()
    assert (newest.step, value(newest)) == (5, 5.0)
    assert newest.manifest.sampler == SamplerState(epoch=1, cursor=2, seed=2**62 + 1)
    assert newest.manifest.num_bytes == sum(
        p.stat().st_size for p in newest.folder.rglob("*") if p.is_file() and p.name != "manifest.json"
    )


def test_there_may_be_none(tmp_path):
    assert store_at(tmp_path).newest() is None


def test_so_many_are_kept(tmp_path):
    store = store_at(tmp_path, keep=3)
    for step in (1, 2, 3, 4, 5):
        write(store, step)
    assert sorted(path.name for path in folder(store).iterdir()) == [
        "latest.json",
        "step-00000003",
        "step-00000004",
        "step-00000005",
    ]
    with pytest.raises(InvalidInputError, match="keep"):
        store_at(tmp_path, keep=0)


@pytest.mark.parametrize(("trusted", "left"), [(None, [5]), (4, [3, 5]), (3, [3, 5]), (2, [1, 5]), (0, [5]), (5, [5])])
def test_so_does_the_newest_of_a_state_that_is_trusted(tmp_path, trusted, left):
    store = store_at(tmp_path, keep=1)
    for step in (1, 3):
        write(store, step, trusted_step=1)
    write(store, 5, trusted_step=3 if trusted is None else trusted)
    if trusted is None:
        store.retire()
    assert sorted(path.name for path in folder(store).glob("step-*")) == [f"step-{step:08d}" for step in left]


def test_what_the_disk_does_not_give_for_now_is_not_removed(tmp_path, monkeypatch):
    """It was taken for damaged, and the newest, whose state nobody had compared yet, was all that was left."""
    store = store_at(tmp_path, keep=2)
    write(store, 1)
    write(store, 3)

    def without_descriptors(path):
        if path.name == manifest.MANIFEST:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
        return read(path)

    read = Path.read_bytes
    with monkeypatch.context() as short:
        short.setattr(Path, "read_bytes", without_descriptors)
        write(store, 5, trusted_step=3)
    assert sorted(path.name for path in folder(store).glob("step-*")) == ["step-00000001", "step-00000003", "step-00000005"]
    store.retire(trusted_step=3)
    assert sorted(path.name for path in folder(store).glob("step-*")) == ["step-00000003", "step-00000005"]


def flip(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(bytes([content[0] ^ 1]) + content[1:])


def test_a_checkpoint_that_was_found_damaged_takes_no_other_ones_place(store):
    flip(next((folder(store) / "step-00000005").rglob("*.distcp")))
    assert store.newest().step == 3
    write(store, 7)
    flip(next((folder(store) / "step-00000007").rglob("*.distcp")))
    assert store.newest().step == 3


@pytest.mark.parametrize("keep", [1, 2])
@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(b""), Path.unlink])
def test_nor_does_one_whose_files_are_not_of_their_size(tmp_path, keep, damage):
    store = store_at(tmp_path, keep=keep)
    write(store, 3)
    for step in (5, 7):
        temporary = store.temporary(step, "test")
        files = write_part(temporary, "layer-00000", {"value": torch.zeros(50)})
        damage(next(temporary.rglob("*.distcp")))
        store.commit(temporary, replace(MANIFEST, step=step, files=files))
    assert store.newest().step == 3


@given(st.data())
@settings(max_examples=12, deadline=None)
def test_any_damage_to_any_file_leads_to_the_previous_one(tmp_path_factory, data):
    made = store_at(tmp_path_factory.mktemp("run"))
    write(made, 3)
    newest = write(made, 5)
    path = data.draw(st.sampled_from(sorted(p for p in newest.folder.rglob("*") if p.is_file())))
    content = path.read_bytes()
    how = data.draw(st.sampled_from(["flip", "truncate", "tear", "lose"]))
    position = data.draw(st.integers(0, 10**6)) % len(content)
    if how == "flip":
        path.write_bytes(
            content[:position] + bytes([content[position] ^ (1 << data.draw(st.integers(0, 7)))]) + content[position + 1 :]
        )
    elif how == "truncate":
        path.write_bytes(content[:position])
    elif how == "tear":  # the right length, and nothing from some block on
        torn = content[:position] + bytes(len(content) - position)
        path.write_bytes(torn)
        if torn == content:
            return
    else:
        path.unlink()
    with capture_logs() as logs:
        found = made.newest()
    assert (found.step, value(found)) == (3, 3.0)
    (warning,) = [log for log in logs if "damaged" in log]
    assert (warning["damaged"], warning["used"]) == ("step-00000005", "step-00000003")
    assert path.name in warning["reason"]


def test_when_all_are_damaged_there_is_none(store):
    for path in folder(store).rglob("*.distcp"):
        path.write_bytes(b"")
    with capture_logs() as logs:
        assert store.newest() is None
    assert [(log["damaged"], log["used"]) for log in logs] == [
        (name, "none; the run begins anew") for name in ("step-00000005", "step-00000003")
    ]


def unreadable(path: Path) -> None:
    """As on a disk that gives an error for it: it is there, and to open it fails."""
    path.rename(path.with_name(f"{path.name}.away"))
    path.symlink_to(path.name)


@pytest.mark.parametrize("name", ["manifest.json", "layer-00000/.metadata"])
def test_what_the_disk_does_not_give_is_no_reason_to_begin_from_the_first_step(store, tmp_path, name):
    """For that would remove it: the disk may be mended."""
    newest = store.newest().folder
    unreadable(newest / name)
    assert store.newest().step == 3
    unreadable(newest.with_name("step-00000003") / name)
    with pytest.raises(UnavailableError, match=rf"run: step-00000005/{name} cannot be read: Too many levels.*; step-00000003/"):
        store.newest()
    for step in (3, 5):
        (folder_of(tmp_path, step) / name).unlink()
    assert store.newest() is None, "what is not there is not waited for"


def test_a_folder_that_the_disk_does_not_give_is_not_taken_for_an_empty_one(store, tmp_path):
    unreadable(tmp_path / "checkpoints")
    with pytest.raises(UnavailableError, match=r"run: cannot be read: Too many levels .*; mend what it is on and train again"):
        store.newest()


def folder_of(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"step-{step:08d}"


@pytest.mark.parametrize("content", [None, b"", b"{", b'{"name": "somewhere"}'])
def test_a_damaged_pointer_does_not_lose_the_checkpoints(store, content):
    pointer = folder(store) / "latest.json"
    pointer.unlink() if content is None else pointer.write_bytes(content)
    assert store.newest().step == 5


def test_a_latest_checkpoint_that_is_gone_is_told(store, tmp_path):
    shutil.rmtree(folder_of(tmp_path, 5))
    with capture_logs() as logs:
        assert store.newest().step == 3
    shutil.rmtree(folder_of(tmp_path, 3))
    with capture_logs() as more:
        assert store.newest() is None
    assert [told["used"] for told in logs + more] == ["step-00000003", "none; the run begins anew"]
    for told in logs + more:
        assert (told["damaged"], told["reason"]) == ("step-00000005", "it is not there, though latest.json names it")


@pytest.mark.parametrize("is_removable", [True, False])
def test_one_that_is_wrong_counts_no_more_also_where_it_cannot_be_removed_and_is_not_missed(
    store, tmp_path, monkeypatch, is_removable
):
    if not is_removable:
        monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
    with capture_logs() as logs:
        store.remove(5)
        assert store.newest().step == store.newest_step == 3
        assert store_at(tmp_path).newest().step == 3
    assert [told["folder"] for told in logs] == ([] if is_removable else [str(folder_of(tmp_path, 5))])


def test_where_the_only_one_is_wrong_none_is_missed(store, tmp_path):
    store.remove(3)
    assert store.newest().step == 5
    with capture_logs() as logs:
        store.remove(5)
        assert store.newest() is None
        store.remove(5)
    assert (logs, store.newest_step) == ([], 0)


def test_what_the_pointer_does_not_know_yet_does_not_count(store):
    pointer = folder(store) / "latest.json"
    before = pointer.read_bytes()
    write(store, 7)
    pointer.write_bytes(before)
    assert store.newest().step == 5


def test_a_step_that_was_undone_is_written_anew(store):
    next((folder(store) / "step-00000005").rglob("*.distcp")).write_bytes(b"")
    assert store.newest().step == 3
    write(store, 5)
    assert (store.newest().step, value(store.newest())) == (5, 5.0)
    write(store, 4)  # after going back to 3
    assert store.newest().step == 4
    assert not (folder(store) / "step-00000005").exists()


def test_one_that_cannot_take_its_place_leaves_what_is_there(store, monkeypatch):
    rename = Path.rename

    def refuse(self, target):
        if self.name.endswith(".test"):
            raise OSError("the disk is broken")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(OSError, match="broken"):
        write(store, 5)
    assert store.newest().step == 5
    monkeypatch.undo()
    store.discard(store.temporary(5, "test"))
    write(store, 5)
    assert {path.name for path in folder(store).glob("*step*")} == {"step-00000003", "step-00000005"}


def test_what_was_being_written_is_never_found_and_cleared(store, tmp_path):
    write_part(store.temporary(9, "test"), "layer-00000", {"value": torch.zeros(1)})
    assert store.newest().step == 5
    store.clear()
    assert not store.temporary(9, "test").exists()


def test_what_was_being_written_and_cannot_be_removed_ends_nobody(store, tmp_path):
    left = tmp_path / "checkpoints" / ".latest.json.new"
    left.mkdir()
    store.clear()
    assert left.exists()
    assert store.newest().step == 5


def test_one_that_is_whole_counts_also_where_the_disk_does_not_give_what_is_to_be_removed(store, tmp_path, monkeypatch):
    """It was told as one that could not be committed, while the pointer named it."""

    def broken(self, pattern):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "glob", broken)
    assert write(store, 7).step == 7
    assert store.newest().step == 7
    store.clear()


def test_one_that_the_pointer_names_is_the_latest_also_where_that_cannot_be_fsynced(store, tmp_path, monkeypatch):
    """It was told that the previous one stays. What a crash may bring back is kept."""

    def synced(folder: Path) -> None:
        if (folder / "latest.json").exists() and b"00000007" in (folder / "latest.json").read_bytes():
            raise OSError(errno.EIO, "Input/output error")
        sync(folder)

    sync = disk.sync_folder
    monkeypatch.setattr(disk, "sync_folder", synced)
    with capture_logs() as logs:
        assert write(store, 7).step == 7
    told = [(log["event"], log["step"]) for log in logs]
    assert told == [("the latest checkpoint may be lost where its host crashes", 7)]
    assert store_at(tmp_path).newest().step == 7
    assert {path.name for path in (tmp_path / "checkpoints").glob("step-*")} >= {"step-00000005", "step-00000003"}


def test_checkpoints_of_another_job_are_refused(store, tmp_path):
    with pytest.raises(InvalidInputError, match="run: holds checkpoints of another job"):
        CheckpointStore(tmp_path / "checkpoints", job="b").newest()


def test_what_another_job_differs_in_is_said_where_it_is_known(store, tmp_path):
    def job(job: str, **about: str) -> CheckpointStore:
        return CheckpointStore(tmp_path / "checkpoints", job=job, about=about)

    with pytest.raises(InvalidInputError, match="of another job; take a new folder"):
        job("b", seed="1").newest()  # whoever wrote it did not say
    write(job("a", layers="emb, head", seed="1"), 7)
    assert job("a", layers="as they are called now").newest().step == 7
    with pytest.raises(InvalidInputError, match=r"of another job \(seed: 1 before, 2 now\); take a new folder"):
        job("b", layers="emb, head", seed="2").newest()
    with pytest.raises(InvalidInputError, match=r"\(seed: 1 before, not there now\)"):
        job("b", layers="emb, head").newest()


def test_what_earlier_versions_wrote_is_read(store):
    path = store.newest().folder / "manifest.json"
    sealed = json.loads(path.read_bytes())
    del sealed["about"]
    path.write_text(json.dumps(sealed))
    assert store.newest().folder == path.parent


def test_what_a_later_version_wrote_is_neither_damaged_nor_removed(store):
    newest = store.newest()
    path, later = newest.folder / "manifest.json", {**codec.encode(newest.manifest), "shards": 2}
    path.write_text(
        codec.dumps({"manifest": later, "sha256": hashlib.sha256(codec.dumps(later).encode()).hexdigest(), "about": {}})
    )
    with refuses(
        "run", str(newest.folder.parent), r"holds step-00000005 of another version of Kintsugi (manifest.shards: is not a field"
    ):
        store.newest()
    assert path.exists()


def test_a_file_says_what_is_wrong_with_it(store):
    found = store.newest()
    name = next(iter(found.manifest.files))
    wrong = replace(found.manifest, files={name: FileRecord(num_bytes=1, sha256="")})
    with pytest.raises(DamagedCheckpointError, match=r"has \d+ bytes where 1 were written"):
        replace(found, manifest=wrong).verify()


def in_a_child(act) -> int:
    """The wait status of a copy of this process that acts."""
    child = os.fork()
    if child == 0:
        try:
            act()
        finally:
            os._exit(7 if sys.exc_info()[0] is not None else 0)
    return os.waitpid(child, 0)[1]


def test_a_full_disk_is_an_error_and_keeps_the_previous_one(tmp_path):
    store = store_at(tmp_path)
    write(store, 3)

    def act():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (700, resource.RLIM_INFINITY))
        with pytest.raises(OSError, match="too large"):
            write(store, 5)

    assert in_a_child(act) == 0
    assert store.newest().step == 3


@pytest.mark.parametrize("call", [1, 3, 5, 6, 7, 8, 9])
def test_a_kill_between_any_two_names_leaves_a_whole_checkpoint(tmp_path, call):
    store = store_at(tmp_path)
    write(store, 3)
    calls = itertools.count(1)

    def struck(real):
        def strike(*arguments, **named):
            if next(calls) == call:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **named)

        return strike

    def act():
        steps = ("sync_folder", "write_synced")
        for owner, names in ((checkpoint, steps), (manifest, steps[:1]), (disk, steps), (Path, ("rename", "replace"))):
            for name in names:
                setattr(owner, name, struck(getattr(owner, name)))
        write(store, 5)

    status = in_a_child(act)
    found = store.newest()
    assert status in (0, signal.SIGKILL)
    assert value(found) == float(found.step)
    assert found.step == 5 if status == 0 else found.step in (3, 5)
    store.clear()
    assert write(store, 6).step == store.newest().step == 6


def test_pointers_are_json_for_other_tools(store):
    assert json.loads((folder(store) / "latest.json").read_text()) == {"name": "step-00000005"}
