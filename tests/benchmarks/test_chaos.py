"""The short campaign, played for real, and what counts as a failure."""

import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.chaos import judge, main
from benchmarks.trouble.campaign import Growth, load
from benchmarks.trouble.footprint import Footprint, Growths, start_ticks
from benchmarks.trouble.report import RunReport
from benchmarks.trouble.service import ServiceProcess, service_process
from benchmarks.trouble.witness import orphans
from kintsugi.core.errors import UnavailableError
from kintsugi.runtime.result import RunResult

ROOT = Path(__file__).parents[2]
SHORT = load(ROOT / "benchmarks" / "campaigns" / "short.json")


@pytest.mark.processes
def test_the_short_campaign_ends_with_nothing_that_must_not_be(tmp_path):
    picture = tmp_path / "phases.svg"
    command = [sys.executable, "-m", "benchmarks.chaos", "--svg", str(picture)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (num_steps,) = re.findall(r"(\d+) steps;", done.stdout)
    assert int(num_steps) < SHORT.num_steps, "the run ends with its strikes, not with its steps"
    assert "wrong steps 0" in done.stdout
    assert "hung 0, lost samples 0, orphans 0, missing 0" in done.stdout
    assert ", 0 things that must not be" in done.stdout
    assert picture.read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [(["nothing.json"], "cannot be read"), (["--run", "seven"], "no such run; the campaign has six")],
)
def test_a_bad_file_and_a_run_that_is_not_there_say_so(arguments, told, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["chaos", *arguments])
    assert main() == 2
    assert told in capsys.readouterr().err


def result_of(losses, counts) -> RunResult:
    return RunResult(
        losses=losses,
        step_seconds=(0.1,) * len(losses),
        parameters={},
        digests={},
        recoveries=(),
        decisions=(),
        microbatches=counts,
    )


def test_wrong_steps_and_lost_samples_are_counted():
    campaign = SHORT.model_copy(update={"num_microbatches": 2})
    reference = result_of((1.0, 2.0, 3.0), ((1, 1),) * 3)
    report = RunReport(name="right", num_workers=6)
    judge(report, campaign, 3, reference, reference)
    assert (report.wrong_steps, report.lost_samples, report.num_failures(Growth())) == (0, 0, 0)
    wrong = replace(reference, losses=(1.0, 2.1, 3.0), microbatches=((1, 1), (0, 2), (1, 1)))
    judge(report, campaign, 3, wrong, reference)
    assert (report.wrong_steps, report.lost_samples) == (2, 2)
    judge(report, campaign, 4, reference, reference)
    assert (report.wrong_steps, report.lost_samples) == (0, 2)


def test_a_report_fails_with_what_grew_hung_or_was_left_out():
    grown = Footprint(memory_bytes=1, sockets=3, threads=0, groups=-1)
    report = RunReport(name="grown", num_workers=6, growth={"worker": grown, "agent": None})
    assert report.excess(Growth()) == ["worker sockets +3"]
    assert report.num_failures(Growth()) == 1
    assert report.num_failures(Growth(sockets=3)) == 0
    assert "TOO MUCH GROWTH: worker sockets +3" in report.line(Growth())
    for failure in ({"hung": 1}, {"orphans": 1}, {"missing": 1}, {"lost_samples": 1}, {"wrong_steps": 1}, {"error": "why"}):
        assert RunReport(name="bad", num_workers=6, **failure).num_failures(Growth()) == 1


def test_growth_is_that_of_a_process_that_stays(monkeypatch):
    growths = Growths()
    seen = iter([10, 11, 10, 12, 13, 13])
    monkeypatch.setattr(Footprint, "of", lambda *_: Footprint(0, next(seen), 1, 0))
    for _ in range(6):
        growths.sample([("worker", 1, Footprint(0, 5, 0, 0))])
    assert growths.growth("worker") == Footprint(0, 3, 0, 0)
    assert growths.growth("agent") is None
    growths.sample([])
    assert growths.growth("worker") is None, "of a process that is gone it is not known what was put off only"


def require_for_ever(service: ServiceProcess) -> None:
    while True:
        service.require_running()


@pytest.mark.processes
def test_a_service_that_ends_by_itself_is_told(tmp_path):
    with service_process(tmp_path) as service:
        service.require_running()
        os.kill(service.pid, signal.SIGKILL)
        with pytest.raises(UnavailableError, match="service: ended with status -9"):
            require_for_ever(service)


@pytest.mark.processes
def test_an_orphan_is_found_and_one_that_ended_is_not():
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        ticks = start_ticks(process.pid)
        assert ticks is not None
        assert orphans({process.pid: ticks}, 0.0) == 1
        assert orphans({process.pid: "another process's"}, 0.0) == 0
        process.stdin.close()
        assert orphans({process.pid: ticks}, 30.0) == 0
