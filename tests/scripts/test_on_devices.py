"""`scripts/test_gpu` with a stand-in for Python: which commands it starts, in which order, and what they find."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STAND_IN = """#!/usr/bin/env bash
if [[ $1 = -c && $2 = *warm_up* ]]; then
    echo compiled >> calls
elif [ "$1" = -c ]; then
    [[ $2 = *get_device_name* ]] && echo h100 || exit "$(cat "$0.missing" 2>/dev/null || echo 0)"
else
    echo "$@" >> calls
    echo "$PYTHONPATH $PYTHONUNBUFFERED" > environment
    env > settings
    exit "$(cat "$0.broken" 2>/dev/null || echo 0)"
fi
"""


@pytest.fixture
def python(tmp_path):
    """An interpreter that writes down what it was asked for, and has a device unless the file `.missing` says otherwise."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "test_gpu").write_bytes((ROOT / "scripts" / "test_gpu").read_bytes())
    path = tmp_path / "python3"
    path.write_text(STAND_IN)
    path.chmod(0o755)
    return path


def run(python, *options, **environment):
    found = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "OUTPUT")}
    settings = {"cwd": python.parent, "env": {**found, "PYTHON": str(python), **environment}, "capture_output": True, "text": True}
    result = subprocess.run(["bash", "scripts/test_gpu", *options], timeout=240.0, check=False, **settings)
    calls = python.with_name("calls")
    return result, calls.read_text().splitlines() if calls.exists() else []


def test_tests_come_first_and_profiles_last_and_figures_are_made_where_tests_fail(python):
    python.with_name("python3.broken").write_text("3")
    result, calls = run(python, OUTPUT="made")
    assert result.returncode == 1
    assert calls[0] == "compiled"
    assert [call.split()[1] for call in calls[1:]] == [
        "pytest",
        *2 * ["benchmarks.lone_stages"],
        "benchmarks.transfers",
        *7 * ["kintsugi.cli"],
    ]
    assert "--output made/llama2-7b.h100.json" in calls[5]
    assert all("--output made/" in call for call in calls[2:])


def test_what_parts_say_is_written_and_the_exit_code_is_that_of_the_last_that_failed(python):
    python.with_name("python3.broken").write_text("3")
    result, _ = run(python, "models", OUTPUT="made")
    assert result.returncode == 1
    assert "python -m benchmarks.lone_stages --check --device cuda" in result.stdout
    assert (python.parent / "made" / "models.log").read_text() == result.stdout


def test_settings_of_the_system_that_workers_with_nccl_refuse_are_set_aside(python):
    run(python, "tests", CUDA_MODULE_LOADING="LAZY")
    assert "CUDA_MODULE_LOADING" not in python.with_name("settings").read_text()


def test_a_part_runs_alone_with_options_of_its_commands(python):
    result, calls = run(python, "transfers", "--repeats", "3")
    assert (result.returncode, len(calls)) == (0, 1)
    assert calls[0] == "-m benchmarks.transfers --check --device cuda --output build/gpu/transfers --repeats 3"


@pytest.mark.parametrize("part", [(), ("tests",)])
def test_options_of_pytest_are_for_the_tests_alone(python, part):
    python.with_name("python3.broken").write_text("5")
    result, calls = run(python, *part, "-k", "nccl")
    assert result.returncode == 5
    assert calls == ["compiled", "-m pytest -vv -rs -W default tests/gpu -k nccl"]


def test_processes_find_the_repository_and_what_was_to_be_found_before(python):
    run(python, "tests", PYTHONPATH="/somewhere/site")
    assert python.with_name("environment").read_text() == f"{python.parent}:/somewhere/site 1\n"


def test_without_a_device_it_says_what_was_left_out(python):
    python.with_name("python3.missing").write_text("1")
    result, calls = run(python)
    assert result.returncode == 0
    assert calls == ["-m pytest -vv -rs -W default tests/gpu"]
    assert result.stdout.count("left out: python -m ") == 10
