"""A process that runs a job is told to end by SIGTERM or SIGHUP: the job ends in order, and whoever decides for it is told."""

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from kintsugi.client import Client
from kintsugi.core.ending import Outcome
from kintsugi.runtime.control.agent import Agent
from kintsugi.runtime.signals import SignalExit, ending_in_order
from kintsugi.runtime.train import train
from tests.runtime.jobs import profile_for, tiny_gpt
from tests.runtime.runs import leaves_nothing
from tests.services import service

BOTH = (signal.SIGTERM, signal.SIGHUP)


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
