"""What commands write into files, and what is left where there is no room."""

import errno
import json
import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kintsugi.cli import main
from kintsugi.core import codec
from kintsugi.core.job import JobSettings
from kintsugi.core.replacing import replacing
from kintsugi.reporting.files import write_whole
from planner.quality import Case
from tests.builders import uniform_profile

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "layers.csv")


def told_without_room(*arguments):
    """What a command says, and its exit status, where no file grows beyond 1 KiB: it fails as a full disk does."""
    command = ["bash", "-c", 'ulimit -f 1; exec "$@"', "bash", sys.executable, "-B", "-m", "kintsugi.cli", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def status_of(*arguments):
    with pytest.raises(SystemExit) as left:
        main(arguments)
    return left.value.code


@pytest.fixture
def importing(tmp_path):
    """The command that writes a profile, without where to."""
    like = tmp_path / "like.json"
    like.write_text(codec.dumps(uniform_profile(2)))
    return "profile", "import", EXAMPLE, "--like", str(like), "--activation-ratio", "0.5", "--output-bytes", "1000", "--output"


@pytest.mark.parametrize("before", [None, "what was there"])
def test_a_full_disk_leaves_what_was_there_and_nothing_else(importing, tmp_path, before):
    output = tmp_path / "out" / "profile.json"
    output.parent.mkdir()
    if before is not None:
        output.write_text(before)
    status, told = told_without_room(*importing, str(output))
    assert (status, "output: cannot be written: File too large" in told) == (2, True)
    assert [path.read_text() for path in output.parent.iterdir()] == ([] if before is None else [before])
    assert status_of(*importing, str(output)) == 0
    assert json.loads(output.read_text())["name"] == "layers"


def test_a_full_disk_leaves_what_a_link_leads_to(importing, tmp_path):
    target, between, link = tmp_path / "kept" / "target.json", tmp_path / "between.json", tmp_path / "link.json"
    target.parent.mkdir()
    target.write_text("what was there")
    between.symlink_to(Path("kept") / "target.json")
    link.symlink_to(between)
    assert told_without_room(*importing, str(link))[0] == 2
    assert [path.read_text() for path in target.parent.iterdir()] == ["what was there"]


def test_links_in_a_circle_are_refused(importing, capsys, tmp_path):
    one, other = tmp_path / "one.json", tmp_path / "other.json"
    one.symlink_to(other)
    other.symlink_to(one)
    assert status_of(*importing, str(one)) == 2
    assert "output: cannot be written: Too many levels of symbolic links" in capsys.readouterr().err


def test_what_is_open_as_the_standard_output_is_written_to(importing, tmp_path):
    output = tmp_path / "output.json"
    with output.open("w") as file:
        subprocess.run([sys.executable, "-m", "kintsugi.cli", *importing, "/dev/stdout"], stdout=file, check=True)
        assert os.fstat(file.fileno()).st_size == output.stat().st_size > 0


def test_a_link_is_followed(importing, tmp_path):
    target, link = tmp_path / "target.json", tmp_path / "link.json"
    link.symlink_to(target)
    for _ in range(2):
        assert status_of(*importing, str(link)) == 0
        assert link.is_symlink()
        assert json.loads(target.read_text())["name"] == "layers"


def test_a_pipe_is_written_to(importing, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with os.fdopen(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)) as reader:
        assert status_of(*importing, str(pipe)) == 0
        assert json.loads(reader.read())["name"] == "layers"
    assert pipe.is_fifo()


@pytest.fixture
def cases(tmp_path):
    """A folder with cases and no baseline yet."""
    (tmp_path / "cases").mkdir()
    case = Case(inline_profile=uniform_profile(2), workers=2, settings=JobSettings(num_microbatches=4))
    for name in ("one", "two", "three", "four", "five", "six"):
        (tmp_path / "cases" / f"{name}.json").write_text(codec.dumps(replace(case, description=name)))
    return tmp_path


@pytest.mark.usefixtures("cases")
def test_a_full_disk_leaves_the_baseline(tmp_path):
    assert status_of("regress", str(tmp_path), "--update") == 0
    before = (tmp_path / "baseline.json").read_text()
    assert len(before) > 1024
    assert told_without_room("regress", str(tmp_path), "--update")[0] == 2
    assert (tmp_path / "baseline.json").read_text() == before
    assert {path.name for path in tmp_path.iterdir()} == {"cases", "baseline.json"}


def test_a_baseline_that_is_a_link_stays_one(cases, tmp_path_factory):
    target = tmp_path_factory.mktemp("kept") / "baseline.json"
    (cases / "baseline.json").symlink_to(target)
    assert status_of("regress", str(cases), "--update") == 0
    assert (cases / "baseline.json").is_symlink()
    assert set(json.loads(target.read_text())["cases"]) == {"one", "two", "three", "four", "five", "six"}


def test_a_file_that_took_its_place_is_not_said_to_be_unwritten(importing, tmp_path, monkeypatch):
    """The name that it had before was removed once more, which a disk may refuse."""

    def unlink(path, missing_ok=False):
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr(Path, "unlink", unlink)
    assert status_of(*importing, str(tmp_path / "profile.json")) == 0
    assert (tmp_path / "profile.json").exists()


def test_of_two_commands_that_write_one_file_at_once_the_second_is_refused(importing, capsys, tmp_path):
    output = tmp_path / "profile.json"
    with replacing(output) as new:
        new.write_text("the first one's")
        assert status_of(*importing, str(output)) == 2
        assert "output: cannot be written: somebody else is writing it" in capsys.readouterr().err
    assert output.read_text() == "the first one's"
    assert status_of(*importing, str(output)) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"like.json", "profile.json"}


def test_a_command_that_was_killed_keeps_nobody_from_the_file(importing, tmp_path):
    output = tmp_path / "profile.json"
    ends = "import os, sys; from pathlib import Path; from kintsugi.core.replacing import replacing\n"
    ends += "with replacing(Path(sys.argv[1])) as new: new.write_text('half'); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", ends, str(output)], check=False)
    assert (tmp_path / ".profile.json.new").exists()
    assert status_of(*importing, str(output)) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"like.json", "profile.json"}


def refuses_to_sync(monkeypatch, number, is_refused):
    """A disk that says so to the fsync of files whose mode it is asked for."""
    fsync = os.fsync

    def refusing(descriptor):
        if is_refused(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", refusing)


@pytest.mark.parametrize("number", [errno.EIO, errno.EINVAL])
def test_a_folder_without_fsync_has_the_file_all_the_same(importing, capsys, tmp_path, monkeypatch, number):
    """Some file systems have none for folders, which is no failure of the disk."""
    output = tmp_path / "profile.json"
    refuses_to_sync(monkeypatch, number, stat.S_ISDIR)
    assert status_of(*importing, str(output)) == 0
    told = f"warning: {output} is written, and may be lost where its host crashes now: Input/output error"
    assert (told in capsys.readouterr().err) == (number == errno.EIO)
    assert json.loads(output.read_text())["name"] == "layers"


def test_what_the_disk_does_not_take_for_good_replaces_no_file_of_a_report(tmp_path, monkeypatch):
    path = tmp_path / "runs.csv"
    path.write_text("what was there")
    refuses_to_sync(monkeypatch, errno.EIO, stat.S_ISREG)
    with pytest.raises(OSError, match=r"Input/output error.*runs\.csv"):
        write_whole(path, "new")
    assert [each.read_text() for each in tmp_path.iterdir()] == ["what was there"]
