"""A process that runs a job is told to end by SIGTERM or SIGHUP: the job ends in order, and whoever decides for it is told."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kintsugi.client import Client
from kintsugi.core.ending import Outcome
from kintsugi.runtime.checkpoints.recording import CheckpointOptions
from kintsugi.runtime.control.agent import Agent
from kintsugi.runtime.options import AgentOptions
from kintsugi.runtime.records.audit import audit
from kintsugi.runtime.result import RunResult
from kintsugi.runtime.signals import End, SignalExit, ending_in_order, put_off
from kintsugi.runtime.train import train
from tests.runtime.gated_jobs import slow_gpt
from tests.runtime.jobs import profile_for, tiny_gpt
from tests.runtime.runs import assert_same, gpt_request, leaves_nothing, run
from tests.services import service

BOTH = (signal.SIGTERM, signal.SIGHUP)
ROOT = Path(__file__).parents[2]
NUM_STEPS = 40
SLOW_SECONDS = 0.25
"""For a sample; a step takes some two."""
long_job = partial(tiny_gpt, num_steps=NUM_STEPS)


@pytest.fixture(autouse=True)
def default_handlers() -> Iterator[None]:
    before = [(number, signal.signal(number, signal.SIG_DFL)) for number in BOTH]
    yield
    for number, handler in before:
        signal.signal(number, handler)


def handlers() -> list[object]:
    return [signal.getsignal(number) for number in BOTH]


@pytest.mark.processes
@pytest.mark.parametrize("number", BOTH)
def test_a_job_whose_process_is_told_to_end_ends_its_workers_and_tells_the_service(tmp_path, number):
    def tell(agent: Agent) -> None:
        assert signal.SIG_DFL not in handlers()
        if agent.losses:
            os.kill(os.getpid(), number)

    with service(tmp_path / "service.db") as running, Client(running.url) as client:
        with leaves_nothing(), pytest.raises(SignalExit) as ended:
            train(tiny_gpt, workers=2, dp=2, pp=1, profile=profile_for(tiny_gpt()), service=running.url, name="told", observer=tell)
        told = client.job("told").ended
    assert ended.value.code == 128 + number
    assert told is not None
    assert told.ending.outcome is Outcome.CANCELLED
    assert told.ending.reason == f"the agent was told to end: {signal.Signals(number).name}"
    assert handlers() == [signal.SIG_DFL] * 2


def recorded(make_job, folder: Path, observer=None) -> RunResult:
    """In a folder, with no checkpoint due before the last step."""
    seldom = CheckpointOptions(every_steps=NUM_STEPS)
    return train(
        make_job, workers=2, dp=2, pp=1, profile=profile_for(make_job()), run=folder, checkpoints=seldom, observer=observer
    )


@cache
def uninterrupted() -> RunResult:
    return run(long_job, gpt_request(2, 1))


@pytest.mark.processes
@pytest.mark.parametrize(("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SignalExit)])
def test_what_was_trained_is_in_a_checkpoint_before_a_job_ends_early(tmp_path, number, error):
    def tell(agent: Agent) -> None:
        if len(agent.losses) >= 3 and not told:
            told.append(len(agent.losses))
            os.kill(os.getpid(), number)

    told: list[int] = []
    with leaves_nothing(), capture_logs() as logs, pytest.raises(error):
        recorded(long_job, tmp_path, tell)
    (ended,) = [log for log in logs if log["event"].startswith("ended early")]
    assert told[0] <= ended["again_from"] <= ended["trained"] < NUM_STEPS
    assert ended["log_level"] == "info", "nothing is lost"
    assert ended["trained_to_compare_it"] == ended["trained"] - ended["again_from"]
    assert not list((tmp_path / "checkpoints").glob(".*"))
    with capture_logs() as logs:
        result = recorded(long_job, tmp_path)
    assert [log["step"] for log in logs if log["event"] == "goes on from a checkpoint"] == [ended["again_from"]]
    assert_same(result, uninterrupted())
    assert audit(tmp_path).is_exact


@pytest.mark.processes
def test_a_loss_meanwhile_is_recovered_from_before_the_job_ends(tmp_path):
    def tell(agent: Agent) -> None:
        if len(agent.losses) >= 3 and not told:
            told.append(len(agent.losses))
            os.kill(os.getpid(), signal.SIGTERM)
            agent.handle("w01").strike()

    told: list[int] = []
    with leaves_nothing(), capture_logs() as logs, pytest.raises(SignalExit):
        recorded(long_job, tmp_path, tell)
    assert [log["lost"] for log in logs if log["event"] == "training goes on"] == [["w01"]]
    (ended,) = [log for log in logs if log["event"].startswith("ended early")]
    assert told[0] <= ended["again_from"] < NUM_STEPS


SCRIPT = """
import os, signal, sys
from functools import partial
from pathlib import Path
from tests.runtime.test_signals import long_job, recorded

told = []

def tell(agent):
    if len(agent.losses) >= 3 and not told:
        told.append(True)
        os.killpg(0, int(sys.argv[2]))

if __name__ == "__main__":
    recorded(long_job, Path(sys.argv[1]), tell)
"""


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGINT, *BOTH])
def test_a_signal_to_the_whole_process_group_ends_the_job_and_no_worker_on_the_spot(tmp_path, number):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(tmp_path / "run"), str(int(number))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    ended = subprocess.run(
        command, start_new_session=True, capture_output=True, text=True, timeout=240, check=False, env=environment
    )
    assert ended.returncode == (128 + number if number in BOTH else -number), ended.stdout + ended.stderr
    told = re.search(r"ended early; .* again_from=(\d+)", re.sub(r"\x1b\[\d*m", "", ended.stderr))
    assert told is not None, ended.stdout + ended.stderr
    assert int(told[1]) >= 3


@pytest.mark.processes
def test_a_second_signal_does_not_wait_for_the_checkpoint(tmp_path):
    def tell(agent: Agent) -> None:
        for _ in range(2 * (len(agent.losses) >= 1)):
            os.kill(os.getpid(), signal.SIGINT)

    held = partial(slow_gpt, tmp_path / "gate", NUM_STEPS, SLOW_SECONDS)
    with leaves_nothing(), capture_logs() as logs, pytest.raises(KeyboardInterrupt):
        recorded(held, tmp_path / "run", tell)
    (ended,) = [log for log in logs if log["event"].startswith("ended early")]
    assert (ended["again_from"], ended["log_level"]) == (0, "warning")


@pytest.mark.processes
def test_a_job_that_cannot_write_its_checkpoint_in_time_ends_without(tmp_path):
    def tell(agent: Agent) -> None:
        if agent.losses and not told:
            told.append(os.kill(os.getpid(), signal.SIGINT))

    told: list[None] = []
    held, options = partial(slow_gpt, tmp_path / "gate", NUM_STEPS, SLOW_SECONDS), AgentOptions(checkpoint_timeout_seconds=0.5)
    settings = {"workers": 2, "dp": 2, "pp": 1, "profile": profile_for(held()), "options": options}
    with leaves_nothing(), capture_logs() as logs, pytest.raises(KeyboardInterrupt):
        train(held, run=tmp_path / "run", checkpoints=CheckpointOptions(every_steps=NUM_STEPS), observer=tell, **settings)
    events = [log["event"] for log in logs]
    assert events.index("ends with a checkpoint of the step under way; asked once more, at once") < len(events) - 1
    assert logs[-1]["log_level"] == "warning", "what was trained is not in a checkpoint"


def test_a_signal_is_put_off_once_and_only_where_that_is_of_use():
    def puts_off(end: End) -> bool:
        ends.append(end)
        return len(ends) > 1

    ends: list[End] = []
    with pytest.raises(KeyboardInterrupt), put_off(puts_off):
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with ending_in_order(), put_off(puts_off):
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(SignalExit) as ended:
            ends[-1]()
        assert ended.value.signal is signal.SIGTERM
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert handlers() == [signal.SIG_DFL] * 2


def test_what_a_script_does_about_signals_is_not_put_off():
    def own(*_: object) -> None:
        pass

    signal.signal(signal.SIGTERM, own)
    with ending_in_order(), put_off(lambda _: True):
        assert handlers()[0] is own
    with put_off(lambda _: True):
        assert handlers() == [own, signal.SIG_DFL]


def test_what_a_script_does_about_a_signal_stays_as_it_is():
    def own(*_: object) -> None:
        pass

    signal.signal(signal.SIGTERM, own)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with ending_in_order():
        assert handlers() == [own, signal.SIG_IGN]
    assert handlers() == [own, signal.SIG_IGN]


def test_what_a_script_does_about_a_signal_meanwhile_stays_as_it_is():
    with ending_in_order():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    assert handlers() == [signal.SIG_IGN, signal.SIG_DFL]


def test_the_second_signal_ends_the_process_on_the_spot():
    def be_told() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            assert handlers() == [signal.SIG_DFL] * 2

    with pytest.raises(SignalExit), ending_in_order():
        be_told()


def test_a_thread_beside_the_main_one_leaves_signals_alone():
    seen = []

    def run() -> None:
        with ending_in_order():
            seen.append(handlers())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(120.0)
    assert seen == [[signal.SIG_DFL] * 2]
