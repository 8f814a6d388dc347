"""What journals prove, and what they give away: every way in which a run or its journals can be wrong."""

import errno
import json
import os
import threading
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from kintsugi.core.errors import InvalidInputError
from kintsugi.runtime.records.audit import audit, read_history
from kintsugi.runtime.records.journal import Pass, Source, next_life, read_journal, sample_hash
from tests.core.refusals import refuses
from tests.runtime.journals import GEOMETRY, Scribe


@pytest.fixture
def scribe(tmp_path):
    made = Scribe(tmp_path)
    yield made
    made.die()


def whole_run(scribe: Scribe) -> None:
    """Two pipelines, then one after a loss, then four; step 4 is discarded once."""
    scribe.begin(0, Source.START, 2)
    scribe.train(range(4))
    scribe.pass_step(4)
    scribe.begin(4, Source.MEMORY, 1)
    scribe.train(range(4, 6), cut=2)
    scribe.begin(6, Source.MEMORY, 4)
    scribe.train(range(6, 7))


def test_a_run_over_several_plans_is_proven(scribe):
    whole_run(scribe)
    report = audit(scribe.run)
    assert report.problems == ()
    assert report.is_exact
    assert report.is_complete
    assert replace(report, num_steps=5).is_complete  # as a later life may ask for that has nothing left to train
    assert [(e.epoch, e.num_steps, e.num_samples) for e in report.epochs] == [(0, 3, 24), (1, 3, 24), (2, 1, 8)]
    assert {(e.duplicates, e.missing, e.extra) for e in report.epochs} == {(0, 0, 0)}
    assert report.undone == ()


def test_going_back_to_a_checkpoint_is_no_second_commit(scribe):
    scribe.begin(0, Source.START, 2)
    scribe.train(range(5))
    scribe.die()
    scribe.begin(3, Source.CHECKPOINT, 1)
    scribe.train(range(3, 7))
    report = audit(scribe.run)
    assert report.is_exact
    assert report.is_complete
    assert [(u.first, u.last, u.source) for u in report.undone] == [(3, 4, Source.CHECKPOINT)]


def test_a_commit_that_died_with_its_worker_is_undone(scribe):
    scribe.begin(0, Source.START, 2)
    scribe.pass_step(0)
    scribe.commit(0, "w03")
    scribe.lose("w03")
    scribe.lose("w02")
    scribe.begin(0, Source.MEMORY, 1)
    scribe.train(range(7))
    assert audit(scribe.run).is_exact


def test_samples_of_a_step_whose_worker_died_at_the_commit_point_are_on_record(scribe):
    scribe.begin(0, Source.START, 2)
    scribe.pass_step(0)
    scribe.lose("w03")
    scribe.commit(0, "w00", "w01", "w02")
    scribe.begin(1, Source.MEMORY, 1)
    scribe.train(range(1, 7))
    assert audit(scribe.run).is_exact


def test_a_survivor_that_trains_a_step_again_commits_it_twice(scribe):
    scribe.begin(0, Source.START, 2)
    scribe.train(range(2))
    scribe.begin(1, Source.MEMORY, 2)
    scribe.train(range(1, 7))
    assert any("step 1 was committed twice: 0001-w00-0.jsonl" in problem for problem in audit(scribe.run).problems)


def test_a_skipped_step_is_found(scribe):
    scribe.begin(0, Source.START, 2)
    scribe.train(range(2))
    scribe.begin(3, Source.MEMORY, 2)
    scribe.train(range(3, 7))
    report = audit(scribe.run)
    assert any("began at step 3 where 2 steps were committed" in problem for problem in report.problems)
    assert not report.is_complete


def test_a_step_skipped_or_repeated_in_an_attempt_is_found(scribe):
    scribe.begin(0, Source.START, 1)
    for step in (0, 2, 2):
        scribe.pass_step(step)
        scribe.commit(step)
    problems = audit(scribe.run).problems
    assert any("committed step 2 and skipped step 1" in problem for problem in problems)
    assert any("committed step 2 twice" in problem for problem in problems)
    assert any("passed it 2 times" in problem for problem in problems)


def test_the_counts_of_what_is_wrong(scribe):
    window, after = scribe.sampler.window(0), scribe.sampler.window(1)
    scribe.begin(0, Source.START, 2)
    scribe.pass_step(0, samples=(*window[:4], *after[4:]))
    scribe.commit(0)
    scribe.train(range(1, 2))
    scribe.pass_step(2, samples=(*scribe.sampler.window(2)[:4], *range(100, 104)))
    scribe.commit(2)
    (epoch,) = audit(scribe.run).epochs
    assert (epoch.duplicates, epoch.missing, epoch.extra) == (4, 8, 4)


def test_a_layer_that_saw_a_sample_twice_or_never_is_found(scribe):
    scribe.begin(0, Source.START, 2)
    scribe.pass_step(0, only="w00")
    scribe.pass_step(0, only="w01")
    scribe.pass_step(0, only="w02")
    scribe.commit(0)
    report = audit(scribe.run)
    assert "step 0: layers 1-2 did not see samples 4 to 7" in report.problems
    assert report.epochs[0].missing == 4
    scribe.pass_step(0, only="w00")
    assert "step 0: layer 0 saw sample 0 twice" in audit(scribe.run).problems


def test_different_losses_of_one_step_are_found(scribe):
    scribe.begin(0, Source.START, 1)
    scribe.pass_step(0)
    scribe.commit(0, "w00", loss=1.0)
    scribe.commit(0, "w01", loss=1.0 + 1e-15)
    assert any("has another loss of step 0" in problem for problem in audit(scribe.run).problems)


def test_a_loss_that_is_no_number_is_the_same_in_all_journals(scribe):
    scribe.begin(0, Source.START, 1)
    scribe.pass_step(0)
    scribe.commit(0, "w00", loss=float("nan"))
    scribe.commit(0, "w01", loss=float("nan"))
    assert audit(scribe.run).is_exact


def test_journals_of_other_jobs_are_not_merged(scribe, tmp_path):
    whole_run(scribe)
    other = Scribe(tmp_path, replace(GEOMETRY, seed=6), life=2)
    other.begin(0, Source.START, 1)
    other.die()
    assert audit(tmp_path).problems == ("the journals tell of 2 jobs, not of one",)


def test_a_folder_without_journals_is_refused(tmp_path):
    with pytest.raises(InvalidInputError, match="run: holds no journals"):
        audit(tmp_path)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_every_change_to_a_journal_is_found(tmp_path_factory, data):
    scribe = Scribe(tmp_path_factory.mktemp("run"))
    whole_run(scribe)
    scribe.die()
    path = data.draw(st.sampled_from(sorted((scribe.run / "audit").glob("*.jsonl"))))
    content = bytearray(path.read_bytes())
    position = data.draw(st.integers(0, len(content) - 1))
    change = data.draw(st.sampled_from(["flip", "remove", "insert"]))
    if change == "flip":
        content[position] ^= 1 << data.draw(st.integers(0, 7))
    elif change == "remove":
        del content[position]
    else:
        content.insert(position, data.draw(st.integers(33, 126)))
    path.write_bytes(bytes(content))
    report = audit(scribe.run)
    is_last = bytes(content).count(b"\n") < len(read_lines(path)) and position >= bytes(content).rfind(b"\n")
    assert not (report.is_exact and report.is_complete) or is_last


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_every_line_that_is_lost_moved_or_repeated_is_found(tmp_path_factory, data):
    scribe = Scribe(tmp_path_factory.mktemp("run"))
    whole_run(scribe)
    scribe.die()
    path = data.draw(st.sampled_from(sorted((scribe.run / "audit").glob("*.jsonl"))))
    lines = path.read_bytes().splitlines(keepends=True)
    index = data.draw(st.integers(0, len(lines) - 2))
    change = data.draw(st.sampled_from(["lose", "move", "repeat"]))
    if change == "lose":
        del lines[index]
    elif change == "move":
        lines[index], lines[index + 1] = lines[index + 1], lines[index]
    else:
        lines.insert(index, lines[index])
    path.write_bytes(b"".join(lines))
    assert not audit(scribe.run).is_exact


def read_lines(path) -> list[bytes]:
    return path.read_bytes().splitlines()


def test_a_journal_that_is_gone_is_missed(scribe):
    whole_run(scribe)
    for path in sorted((scribe.run / "audit").glob("*.jsonl")):
        content = path.read_bytes()
        path.unlink()
        assert not audit(scribe.run).is_exact, path.name
        path.write_bytes(content)


@pytest.mark.parametrize("damage", [lambda path: path.mkdir(), lambda path: path.symlink_to("nowhere")], ids=["folder", "link"])
def test_a_journal_that_cannot_be_read_is_named(scribe, damage):
    whole_run(scribe)
    path = next((scribe.run / "audit").glob("*.jsonl"))
    path.unlink()
    damage(path)
    assert any(problem.startswith(f"{path.name} cannot be read: ") for problem in audit(scribe.run).problems)
    with pytest.raises(InvalidInputError, match=f"run: {path.name} cannot be read"):
        read_journal(path)


def test_a_journal_of_another_version_is_named(scribe, monkeypatch):
    monkeypatch.setattr("kintsugi.runtime.records.journal.asdict", lambda geometry: {"seed": geometry.seed})
    scribe.begin(1, Source.START, 1)
    path = next((scribe.run / "audit").glob("*.jsonl"))
    with pytest.raises(InvalidInputError, match=f"{path.name} begins without 'num_samples': another version of Kintsugi wrote it"):
        read_journal(path)


def test_a_line_that_was_cut_off_by_a_death_is_no_problem(scribe):
    whole_run(scribe)
    path = scribe.run / "audit" / "0001-w07-0.jsonl"
    path.write_bytes(path.read_bytes() + b'{"kind":"st')
    (scribe.run / "audit" / "0001-w09-0.jsonl").write_bytes(b'{"ki')
    assert audit(scribe.run).is_exact


def test_history_tells_the_losses_that_hold(scribe):
    scribe.begin(0, Source.START, 1)
    scribe.pass_step(0)
    scribe.commit(0, loss=9.0)
    scribe.begin(0, Source.CHECKPOINT, 1)
    scribe.train(range(2))
    history = read_history(scribe.run)
    assert history.losses == {0: 1.0, 1: 2.0}
    assert history.microbatches == {0: (1,), 1: (1,)}


def test_lives_are_counted(scribe, tmp_path):
    assert next_life(tmp_path / "audit", GEOMETRY) == 1
    scribe.begin(0, Source.START, 1)
    assert next_life(tmp_path / "audit", replace(GEOMETRY, num_steps=9)) == 2


def test_a_folder_of_another_job_is_refused(scribe, tmp_path):
    scribe.begin(0, Source.START, 1)
    with pytest.raises(InvalidInputError, match=r"run: holds journals of another job \(another seed\); take a new folder"):
        next_life(tmp_path / "audit", replace(GEOMETRY, seed=6))
    with pytest.raises(InvalidInputError, match=rf"\(num_samples: {GEOMETRY.num_samples} before, 7 now\)"):
        next_life(tmp_path / "audit", replace(GEOMETRY, num_samples=7))


def test_a_damaged_journal_is_warned_of_and_stops_nobody(scribe):
    scribe.begin(0, Source.START, 1)
    scribe.die()
    latest = max((scribe.run / "audit").iterdir())
    latest.write_bytes(latest.read_bytes().replace(b"begin", b"begun"))
    with capture_logs() as logs:
        assert next_life(scribe.run / "audit", GEOMETRY) == 2
    assert [latest.name in log["reason"] for log in logs] == [True]
    assert not audit(scribe.run).is_exact


@pytest.mark.parametrize("text", ["", "mine\n"])
def test_a_file_beside_the_journals_that_is_none_keeps_no_life_from_beginning(scribe, text):
    scribe.begin(0, Source.START, 1)
    (scribe.run / "audit" / "notes.jsonl").write_text(text)
    assert next_life(scribe.run / "audit", GEOMETRY) == 2


def test_journals_of_one_worker_never_share_a_file(scribe):
    for _ in range(2):
        scribe.begin(0, Source.START, 1)
        scribe.lose("w00")
    assert (scribe.run / "audit" / "0001-w00-1.jsonl").exists()


def test_hashes_depend_on_samples_and_their_order():
    assert len({sample_hash(ids) for ids in ((), (1,), (1, 2), (2, 1), (258,))}) == 5
    assert Pass.of(2, (5, 6), 0, 1) == Pass(2, 2, 0, 1, sample_hash((5, 6)))


def test_lines_can_be_read_by_people(scribe):
    whole_run(scribe)
    record = read_journal(scribe.run / "audit" / "0001-w00-0.jsonl")
    assert (record.worker, record.life, record.geometry, record.problem) == ("w00", 1, GEOMETRY, None)
    line = json.loads(read_lines(scribe.run / "audit" / "0001-w00-0.jsonl")[2])
    assert {"kind", "attempt", "step", "epoch", "cursor", "passes", "chain"} == set(line)


def test_a_full_disk_stops_the_journal_and_not_the_training(scribe, monkeypatch):
    scribe.begin(0, Source.START, 1)
    write = os.pwrite

    def full(descriptor, data, end):
        write(descriptor, data[:5], end)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    scribe.train(range(1))
    monkeypatch.undo()
    scribe.train(range(1, 2))
    report = audit(scribe.run)
    assert not report.is_exact
    assert all("line" not in problem for problem in report.problems)


@pytest.mark.parametrize("calls", [("open",), ("fsync",), ("pwrite", "ftruncate")])
def test_nothing_that_fails_on_a_journal_stops_the_training(scribe, monkeypatch, calls):
    """As where a worker joins when a disk is full, or its file system was mounted read-only after errors."""

    def failing(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    with capture_logs() as logs:
        for call in calls:
            monkeypatch.setattr(os, call, failing)
        scribe.begin(0, Source.START, 1)
        scribe.train(range(1))
        for journal in scribe.journals.values():
            journal.sync()
        monkeypatch.undo()
        scribe.die()
    assert [log["event"] for log in logs] == ["this run cannot be proven: its journal failed"] * 2, "once for each worker"


def test_a_folder_that_is_gone_stops_no_worker_that_joins(scribe):
    scribe.begin(0, Source.START, 1)
    (scribe.run / "audit").rename(scribe.run / "elsewhere")
    (scribe.run / "audit").touch()
    with capture_logs() as logs:
        scribe.begin(1, Source.MEMORY, 2)
    assert [log["event"] for log in logs] == ["this run cannot be proven: its journal failed"] * 2


@pytest.fixture
def hung(monkeypatch):
    """Journals wait a moment for lines, and their disk says nothing until this event."""
    monkeypatch.setattr("kintsugi.runtime.records.journal._LINE_SECONDS", 0.05)
    answers, write = threading.Event(), os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda *to: answers.wait(120.0) and write(*to))
    return answers


def test_a_disk_that_hangs_holds_up_no_training_and_has_every_line_once_it_answers(scribe, hung):
    with capture_logs() as logs:
        scribe.begin(0, Source.START, 1)
        scribe.train(range(GEOMETRY.num_steps))
    told = "the journal's disk does not answer; the training goes on, and its lines are written once it does"
    assert [(log["event"], log["folder"]) for log in logs] == [(told, str(scribe.run / "audit"))] * 2, "once for each worker"
    hung.set()
    for journal in scribe.journals.values():
        journal.sync()
    scribe.die()
    assert audit(scribe.run).is_exact


def test_lines_that_wait_for_a_disk_are_so_many_at_most(scribe, hung, monkeypatch):
    monkeypatch.setattr("kintsugi.runtime.records.journal._MOST_WAITING", 4)
    with capture_logs() as logs:
        scribe.begin(0, Source.START, 1)
        scribe.train(range(GEOMETRY.num_steps))
        hung.set()
        scribe.die()
    assert [log["error"] for log in logs if "error" in log] == ["more lines wait than are kept, for the disk does not answer"] * 2
    assert audit(scribe.run).committed_steps < GEOMETRY.num_steps


def test_a_run_of_which_a_worker_has_no_journal_is_not_proven(scribe, monkeypatch):
    scribe.begin(0, Source.START, 1)
    scribe.train(range(1))
    real = os.open
    monkeypatch.setattr("kintsugi.runtime.records.journal.os.open", lambda *_: real(scribe.run / "missing" / "file", os.O_RDONLY))
    scribe.begin(1, Source.MEMORY, 2)
    monkeypatch.undo()
    scribe.train(range(1, GEOMETRY.num_steps))
    assert "life 1, attempt 2: journals of 2 workers where [4] took part" in audit(scribe.run).problems


def test_journals_that_the_disk_does_not_name_are_told_of(tmp_path, monkeypatch):
    """It was an error of the system's, without a way out."""

    def listdir(_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "listdir", listdir)
    with refuses("run", str(tmp_path), "cannot be read: Input/output error; mend what its disk is on, or take another folder"):
        next_life(tmp_path, GEOMETRY)
