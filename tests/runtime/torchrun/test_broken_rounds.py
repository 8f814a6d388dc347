"""Agents that are lost once their round is complete: the others meet anew; they waited for what was to be said, and ended."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
from torch.distributed import DistStoreError
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.rendezvous import RendezvousParameters

from kintsugi.runtime.torchrun.broken_rounds import meet_anew
from kintsugi.runtime.torchrun.rendezvous import create
from tests.services import service

PATIENCE = {"last_call_timeout": "1", "keep_alive_interval": "1", "keep_alive_max_attempt": "3", "close_timeout": "5"}
SECONDS = 100.0


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with service(tmp_path_factory.mktemp("service") / "kintsugi.sqlite3") as running:
        yield running.url


class Crew:
    """Agents' ends of one rendezvous, all in this process: which was made first has rank 0."""

    def __init__(self, closing, url, run):
        self._new = lambda: create(RendezvousParameters("kintsugi", url, run, 1, 2, local_addr="127.0.0.1", **PATIENCE))
        self.first, self.second = self._new(), self._new()
        self.threads = closing.enter_context(ThreadPoolExecutor())
        closing.callback(self.second.shutdown)
        closing.callback(self.first.shutdown)


@pytest.fixture
def crew(url, request):
    with ExitStack() as closing:
        yield Crew(closing, url, request.node.name)


def fall_silent(rendezvous):
    rendezvous._handler._stop_heartbeats()


def is_lost_before_it_tells_its_address(rendezvous):
    def end(*_):
        raise InterruptedError("it was killed")

    rendezvous._handler._create_tcp_store_server = end
    with pytest.raises(InterruptedError):
        rendezvous.next_rendezvous()
    fall_silent(rendezvous)


def is_lost_before_it_tells_its_ranks(rendezvous):
    rendezvous.next_rendezvous()
    fall_silent(rendezvous)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("lost", "left", "is_lost"),
    [("first", "second", is_lost_before_it_tells_its_address), ("second", "first", is_lost_before_it_tells_its_ranks)],
    ids=["rank 0", "rank 1"],
)
def test_an_agent_whose_round_breaks_meets_anew(crew, capsys, lost, left, is_lost):
    """It waited for a minute, ended with the store's error, and the run was over for all."""
    spec = WorkerSpec("default", 1, getattr(crew, left), entrypoint="true")
    agent = LocalElasticAgent(spec, DefaultLogsSpecs())
    losing = crew.threads.submit(is_lost, getattr(crew, lost))
    met = crew.threads.submit(agent._rendezvous, agent.get_worker_group())
    losing.result(SECONDS)
    met.result(SECONDS)
    group = agent.get_worker_group()
    assert (group.group_rank, group.group_world_size) == (0, 1)
    assert group.store.check(["torchelastic/assigned_ranks/0"])
    node = getattr(crew, lost)._handler._this_node
    assert f"left or silent: {node.addr} (process {node.pid})" in capsys.readouterr().out


@pytest.mark.processes
def test_ranks_that_just_began_are_not_left_waiting_for_those_of_a_lost_agent(crew):
    """Gloo's wait for half an hour. Later a silent agent stops nothing: its ranks may well train on."""
    for met in [crew.threads.submit(one.next_rendezvous) for one in (crew.first, crew.second)]:
        assert met.result(SECONDS).world_size == 2
    assert crew.first.num_nodes_waiting() == 0
    fall_silent(crew.second)
    deadline, pause = time.monotonic() + SECONDS, threading.Event()
    while not (waiting := crew.first.num_nodes_waiting()) and time.monotonic() < deadline:
        pause.wait(0.1)
    assert waiting == 1
    crew.first._met_at = float("-inf")
    assert crew.first.num_nodes_waiting() == 0


def test_the_agents_of_other_rendezvous_end_as_they_did():
    meet_anew()

    def met():
        raise DistStoreError("nobody came")

    group = SimpleNamespace(spec=SimpleNamespace(rdzv_handler=SimpleNamespace(next_rendezvous=met)))
    agent = SimpleNamespace(record_duration=lambda _: ExitStack())
    with pytest.raises(DistStoreError, match="nobody came"):
        LocalElasticAgent._rendezvous(agent, group)
