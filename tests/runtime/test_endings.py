"""A script's exit code says how it ended, whatever it left open."""

import os
import subprocess
import sys
import threading
import weakref

import pytest
import torch
from structlog.testing import capture_logs

from kintsugi.core.errors import CommunicationError
from kintsugi.runtime import endings
from kintsugi.runtime.overlay.coordinator import Coordinator
from kintsugi.runtime.synchronization.transport import PeerTransport
from tests.runtime.overlay.crew import OPTIONS, perceptron
from tests.runtime.overlay.desk import Desk


@pytest.fixture(autouse=True)
def nothing_due(monkeypatch):
    due: dict = {}
    monkeypatch.setattr(endings, "_due", due)
    yield
    assert due == {}


def test_all_end_in_their_order_though_one_fails():
    ended = []

    def end(name: str):
        def run() -> None:
            ended.append(name)
            endings.is_over(run)
            if name == "b":
                raise RuntimeError("stuck")

        return run

    ends = [end(name) for name in "abcd"]
    for one in ends:
        endings.before_exit(one)
    endings.is_over(ends[2])
    with capture_logs() as logs:
        endings._end_all()
    assert ended == ["a", "b", "d"]
    assert [(log["event"], log["log_level"]) for log in logs] == [("could not be ended with the script", "error")]


def test_a_worker_that_nobody_closes_leaves_with_its_script():
    coordinator = Coordinator(*perceptron(), service=Desk(), job="job", worker="a", options=OPTIONS)
    coordinator.update()
    own = {thread for thread in threading.enumerate() if thread.name in ("overlay-accepts", "overlay-beats")}
    del coordinator
    endings._end_all()
    assert len(own) == 2
    assert not any(thread.is_alive() for thread in own)


class Group:
    """Of one worker."""

    def all_reduce(self, tensor: torch.Tensor) -> None:
        """Nothing is added."""


def test_a_transport_lets_go_of_its_group_before_the_interpreter_ends():
    """Whose destructor ends its threads: they abort the process where they let go of a tensor later on."""
    group = Group()
    is_there = weakref.ref(group)
    transport = PeerTransport(group.all_reduce, rank=0, num_workers=1)
    del group
    endings._end_all()
    assert is_there() is None
    with pytest.raises(CommunicationError):
        transport.begin_sum(torch.ones(1)).wait()


@pytest.mark.processes
@pytest.mark.parametrize(("arguments", "code"), [(["averaging"], 0), (["copying", "raises"], 1)], ids=["ends", "raises"])
def test_what_a_script_leaves_open_does_not_change_its_exit_code(arguments, code):
    command = [sys.executable, "-m", "tests.runtime.unclosed", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == code, ended.stderr
    assert ("a mistake of the script" in ended.stderr) == (code == 1)


FORKED = """
import os, sys
from kintsugi.core.errors import CommunicationError
from kintsugi.runtime import endings
endings.before_exit(lambda: print("ended", os.getpid(), flush=True))
child = os.fork()
if child:
    assert os.waitpid(child, 0)[1] == 0
    print("parent", os.getpid(), flush=True)
"""


@pytest.mark.processes
def test_a_forked_process_leaves_what_its_parent_holds_alone():
    ended = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=240.0, check=True)
    told = [line.split() for line in ended.stdout.splitlines()]
    assert [word for word, _ in told] == ["parent", "ended"]
    assert told[0][1] == told[1][1] != str(os.getpid())
