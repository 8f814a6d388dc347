"""Every shell command in the documents works: each is executed, in a copy of the checkout.

Commands that run long are named in `LONG_RUNNING`; for them the test checks that the command exists. What a shell would only
hand to `kintsugi` runs in a fork of a process that has loaded it, which spares loading it for every command.
"""

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest
import torch

from kintsugi import cli
from kintsugi.runtime.forking import forkserver

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "profiles" / "README.md"]
LONG_RUNNING = (
    "make demo",
    "make test",
    "make soak",
    "make bench",
    "make lowest",
    "kintsugi serve",
    "kintsugi demo",
    "kintsugi matrix runs/",
)
STARTING_WORKERS = ("python examples/", "python -m benchmarks.membership", "kintsugi supervise", "kintsugi audit")
"""Commands that start workers, or read what these left."""
NEEDS_DEVICE = "--device cuda"
"""Commands that are refused, with the reason, where torch finds none."""
FOR_A_SHELL = re.compile(r"[|&;<>$*?`]")
PATIENCE_SECONDS = 380.0
"""Most of these commands run beside tests that go first."""
NOT_COPIED = shutil.ignore_patterns(".venv", ".git", ".*_cache", "__pycache__", "runs", "*.sqlite3*")


def commands(text: str) -> list[str]:
    """The commands of all ```console and ```sh blocks, in order; continued lines are joined.

    In a console block commands follow a `$ ` and everything else is output; in a sh block every line is a command.
    """
    found = []
    for language, block in re.findall(r"^```(console|sh)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        lines = re.sub(r"\\\n\s*", "", block).splitlines()
        if language == "console":
            lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        found += [line for line in lines if line.strip() and not line.startswith("#")]
    return found


def runs_long(command: str) -> bool:
    return command.strip().startswith(LONG_RUNNING)


def environment() -> dict[str, str]:
    """The present one, with the commands of the virtual environment first."""
    return {**os.environ, "PATH": f"{ROOT / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"}


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """What came of a command in a folder."""
    if command.startswith("kintsugi ") and not FOR_A_SHELL.search(command):
        return run_forked(shlex.split(command)[1:], folder)
    return run_in_shell(command, folder)


def run_in_shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def run_forked(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    with tempfile.NamedTemporaryFile("r") as output:
        process = forkserver().Process(target=kintsugi, args=(arguments, folder, output.name))
        process.start()
        process.join(PATIENCE_SECONDS)
        process.kill()
        process.join()
        status = process.exitcode
        process.close()
        assert status is not None
        return subprocess.CompletedProcess(arguments, status, output.read(), "")


def kintsugi(arguments: list[str], folder: Path, output: str) -> None:
    """`kintsugi` with arguments in a folder, all that it says going to a file."""
    os.chdir(folder)
    os.environ.update(environment())
    descriptor = os.open(output, os.O_WRONLY)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    cli.main(arguments)


@cache
def exists(command: str) -> bool:
    """Whether a long-running command is there: a target of the Makefile, or a command of kintsugi."""
    program, name = shlex.split(command)[:2]
    if program == "make":
        return subprocess.run(["make", "--dry-run", name], cwd=ROOT, capture_output=True, check=False).returncode == 0
    return run(f"kintsugi {name} --help", ROOT).returncode == 0


def collected() -> list[pytest.param]:
    return [
        pytest.param(
            command,
            id=f"{document.relative_to(ROOT)}:{number}",
            marks=[pytest.mark.processes] if command.startswith(STARTING_WORKERS) else [],
        )
        for document in DOCUMENTS
        for number, command in enumerate(commands(document.read_text()))
    ]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of the working tree that commands may write to; the virtual environment is the real one."""
    folder = tmp_path_factory.mktemp("documents") / "kintsugi"
    shutil.copytree(ROOT, folder, ignore=NOT_COPIED)
    (folder / ".venv").symlink_to(ROOT / ".venv")
    return folder


@pytest.mark.parametrize("command", collected())
def test_command_works(command, checkout):
    if runs_long(command):
        assert exists(command)
        return
    result = run(command, checkout)
    if NEEDS_DEVICE in command and not torch.cuda.is_available():
        assert (result.returncode, "device: cannot be used" in result.stdout + result.stderr) == (2, True), result
        return
    assert result.returncode == 0, f"$ {command}\n{result.stdout}{result.stderr}"


@pytest.mark.parametrize("command", LONG_RUNNING)
def test_long_running_commands_exist(command):
    assert exists(command)


def test_documents_have_commands():
    assert commands((ROOT / "README.md").read_text())
    assert commands((ROOT / "profiles" / "README.md").read_text())


def test_commands_are_found_in_console_and_sh_blocks_alone():
    text = "```console\n$ one \\\n    --more\noutput\n$ two\n```\n\n```python\nno\n```\n\n```sh\n# comment\nthree\n```\n"
    assert commands(text) == ["one --more", "two", "three"]


def test_a_command_that_fails_is_noticed(tmp_path):
    assert run("false | cat", tmp_path).returncode != 0
    assert run("absent-command", tmp_path).returncode != 0
    result = run("kintsugi plan --workers absent", tmp_path)
    assert result.returncode == 2
    assert "--workers" in result.stdout
    assert not exists("make absent")


def test_links_between_documents_lead_somewhere():
    for document in DOCUMENTS:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.relative_to(ROOT)} links to {target}"
