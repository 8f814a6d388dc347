"""What a failed command says on a terminal."""

import subprocess
import sys
from pathlib import Path

import pytest

from kintsugi.cli import main
from kintsugi.cli.errors import error_line
from kintsugi.core.errors import InvalidInputError
from kintsugi.core.version import __version__

SHARDS = Path(__file__).parents[2] / "examples" / "shards.json"


def test_a_command_names_the_value_that_it_refuses(tmp_path, capsys):
    with pytest.raises(SystemExit) as left:
        main(["audit", str(tmp_path)])
    assert left.value.code == 2
    line = capsys.readouterr().err
    assert line.startswith("kintsugi: run: holds no journals")
    assert line.endswith(f"(value: {str(tmp_path)!r})\n")


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), ("", "''"), (Path("a/b"), "'a/b'"), ([1, 2], "[1, 2]"), ("a\x1b[31m\n", r"'a\x1b[31m\n'")],
)
def test_values_are_shown_on_one_line(value, shown):
    assert error_line(InvalidInputError("is wrong", field="x", value=value)) == f"kintsugi: x: is wrong (value: {shown})"


def test_neither_field_nor_message_steers_the_terminal():
    line = error_line(InvalidInputError("is no field of\n\x1b]0;x\x07", field="a\x1b[31m", value=1))
    assert line == "kintsugi: a\\x1b[31m: is no field of\n\\x1b]0;x\\x07 (value: 1)"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["simulate", "--scenario", "spot", "--out", ""], "--out"),
        (["simulate", "--out=", "--scenario", "spot"], "--out"),
        (["matrix", ""], "matrix"),
        (["regress", "--update", ""], "--update"),
        (["supervise", "", "--", "true", ""], "supervise"),
    ],
)
def test_an_empty_text_stands_for_nothing(tmp_path, monkeypatch, capsys, arguments, named):
    """Of a shell's variable that is not set: as a folder it would be the one that one is in."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    assert capsys.readouterr().err.startswith(f"kintsugi: {named}: is followed by an empty text")
    assert not [*tmp_path.iterdir()]


def test_the_words_of_another_command_may_be_empty(tmp_path):
    seen = "import sys; sys.exit(sys.argv[1:] != ['', '--x='])"
    with pytest.raises(SystemExit) as left:
        main(["supervise", str(tmp_path), "--", sys.executable, "-c", seen, "", "--x="])
    assert left.value.code == 0


def test_a_long_value_keeps_its_ends():
    line = error_line(InvalidInputError("is wrong", field="x", value="/begin/" + "m" * 5000 + "/end"))
    assert "/begin/" in line
    assert line.endswith("/end')")
    assert len(line) < 200


def test_an_error_without_a_value_shows_none():
    assert error_line(InvalidInputError("is missing", field="x")) == "kintsugi: x: is missing"


@pytest.mark.parametrize("form", ["json", "table"])
def test_an_output_that_is_full_is_told_on_one_line(form):
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "kintsugi.cli", "shards", "--input", str(SHARDS), "--format", form]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    told = "kintsugi: the output cannot be written: No space left on device; send it elsewhere\n"
    assert (done.returncode, done.stderr) == (1, told)


@pytest.mark.parametrize(
    "arguments", [["shards", "--input", str(SHARDS)], ["shards", "--input", str(SHARDS), "--format", "json"], ["--version"]]
)
def test_an_output_that_is_closed_is_told_on_one_line(arguments):
    done = closed_to(arguments)
    assert (done.returncode, done.stderr) == (1, "kintsugi: the output cannot be written: Bad file descriptor; send it elsewhere\n")


@pytest.mark.parametrize(
    ("arguments", "status"),
    [(["shards", "--foo"], 2), (["shards", "--input", "/dev/null/missing"], 2), (["nothing"], 2), (["--version"], 1)],
)
def test_an_error_that_cannot_be_told_has_its_exit_status_still(arguments, status):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-m", "kintsugi.cli", *arguments], stdout=full, stderr=full, check=False)
    assert done.returncode == status


def test_who_prints_nothing_needs_no_output(tmp_path):
    done = closed_to(["supervise", str(tmp_path), "--", "true"])
    assert done.returncode == 0


def closed_to(arguments):
    """Run with no standard output."""
    command = ["bash", "-c", '"$@" >&-', "bash", sys.executable, "-m", "kintsugi.cli", *arguments]
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)


def test_who_stops_reading_is_told_nothing():
    with subprocess.Popen(
        [sys.executable, "-m", "kintsugi.cli", "shards", "--input", str(SHARDS), "--format", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


def interrupted(_: str):
    raise KeyboardInterrupt


def interrupted_in_machine_code(_: str):
    raise SystemError("returned a result with an exception set") from KeyboardInterrupt()


@pytest.mark.parametrize("interrupted", [interrupted, interrupted_in_machine_code])
def test_an_interrupted_command_ends_without_a_word(capsys, monkeypatch, interrupted):
    monkeypatch.setattr("kintsugi.cli.load", interrupted)
    with pytest.raises(SystemExit) as left:
        main(["plan"])
    assert left.value.code == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("arguments", [["--version"], ["--version", "plan"]])
def test_the_version_is_told(arguments, capsys):
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert (left.value.code, capsys.readouterr().out) == (0, f"kintsugi {__version__}\n")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("abc", "must be a valid integer, not 'abc'"),
        ("1.5", "must be a valid integer, not '1.5'"),
        ("0", "must be a whole number above 0, not 0"),
        ("-3", "must be a whole number above 0, not -3"),
    ],
)
def test_a_number_that_is_none_is_shown(capsys, given, told):
    profile = "profiles/models/gpt2-124m.a100-80g.json"
    with pytest.raises(SystemExit) as ended:
        main(["plan", "--profile", profile, "--num-microbatches", "8", f"--workers={given}"])
    assert ended.value.code == 2
    assert told in " ".join(capsys.readouterr().err.split())
