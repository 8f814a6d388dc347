"""torchrun's agents meet at the service: two train together, one dies, the other goes on in the next generation."""

import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from datetime import UTC, datetime, timedelta
from importlib.metadata import entry_points
from pathlib import Path

import httpx2
import pytest
from torch.distributed import DistStoreError
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousParameters,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    RendezvousSettings,
    RendezvousTimeout,
    _BackendRendezvousStateHolder,
    _NodeDesc,
    _RendezvousState,
)

from kintsugi.core.resiliency import RecoveryEvent
from kintsugi.runtime.torchrun import rendezvous_store
from kintsugi.runtime.torchrun.rendezvous import STATE, ServiceBackend, create
from kintsugi.runtime.torchrun.rendezvous_store import Keys, ServiceStore, Value
from tests.processes import free_port
from tests.services import service

START_SECONDS = 100.0
WORKER = Path(__file__).with_name("rendezvous_worker.py")
PATIENCE = "join_timeout=240,last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=6,close_timeout=5"


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with service(tmp_path_factory.mktemp("service") / "kintsugi.sqlite3") as running:
        yield running.url


@pytest.fixture
def keys(url, request):
    keys = Keys(url, request.node.name)
    yield keys
    keys.close()


def state(round_):
    """Torch's own state of a round."""
    made = _RendezvousState()
    made.round = round_
    return pickle.dumps(made)


@pytest.mark.processes
def test_the_state_is_changed_by_those_who_know_it_alone(keys):
    first, second = ServiceBackend(keys), ServiceBackend(keys)
    assert first.get_state() is None
    _, token, is_ours = first.set_state(state(0))
    assert is_ours
    _, _, is_ours = second.set_state(state(5))
    assert not is_ours
    assert second.generation == 0
    content, seen = second.get_state()
    assert seen == token
    _, later, is_ours = second.set_state(state(1), seen)
    assert is_ours
    content, found, is_ours = first.set_state(state(9), token)
    assert not is_ours
    assert found == later
    assert pickle.loads(content).round == first.generation == 1


@pytest.mark.processes
def test_a_state_that_is_none_of_torchs_is_refused(keys):
    keys.put(STATE, b"nothing")
    with pytest.raises(RendezvousStateError):
        ServiceBackend(keys).get_state()


class Held:
    """Keys under each of which the same content is."""

    def __init__(self, content):
        self.found = Value(content, 1)

    def get(self, key, *, is_patient):
        return self.found

    def put(self, key, value, *, expected, generation, is_patient):
        return self.found


class Away(Held):
    """Keys that cannot be asked for at first."""

    def get(self, key, *, is_patient):
        self.get = super().get
        raise ConnectionError("away")


def test_silence_does_not_count_while_the_service_is_away():
    made, heard = _RendezvousState(), datetime.now(UTC) - timedelta(hours=1)
    made.last_heartbeats = {_NodeDesc("host", 1, 2): heard}
    content = pickle.dumps(made)
    assert ServiceBackend(Held(content)).get_state() == (content, 1)
    backend, now = ServiceBackend(Away(content)), datetime.now(UTC)
    for earliest, latest in ((now, now + timedelta(minutes=9)), (heard, heard + timedelta(minutes=9))):
        with pytest.raises(RendezvousConnectionError):
            backend.get_state()
        given, version = backend.get_state()
        assert version == 1
        assert all(earliest < last < latest for last in pickle.loads(given).last_heartbeats.values())
        assert backend.get_state() == (content, 1)
        backend._keys = Away(content)


@pytest.mark.parametrize("is_complete", [True, False])
def test_who_comes_right_after_the_service_was_away_takes_none_of_a_complete_round_for_dead(is_complete):
    """All that train were silent for as long. Of a round that is not complete, the own last life would make one of two."""
    node, made = _NodeDesc("host", 1, 2), _RendezvousState()
    made.complete, made.participants = is_complete, {node: 0}
    made.last_heartbeats = {node: datetime.now(UTC) - timedelta(minutes=1)}
    backend = ServiceBackend(Held(pickle.dumps(made)))
    settings = RendezvousSettings("run", 1, 2, RendezvousTimeout(), timedelta(seconds=5), 3)
    holder = _BackendRendezvousStateHolder(backend, settings, cache_duration=0)
    holder.sync()
    assert holder.state.participants == ({node: 0} if is_complete else {})
    holder.sync()
    assert holder.state.participants == {}, "it knows from then on how long the service was away"


class Calling:
    """What makes a folder of whoever unpickles it."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("is_within", [False, True])
def test_a_state_that_would_call_something_is_refused_and_calls_nothing(tmp_path, is_within):
    made = _RendezvousState()
    made.deadline = Calling(tmp_path / "made")
    backend = ServiceBackend(Held(pickle.dumps(made if is_within else made.deadline)))
    with pytest.raises(RendezvousStateError):
        backend.get_state()
    with pytest.raises(RendezvousStateError):
        backend.set_state(state(0))
    assert not (tmp_path / "made").exists()


def test_all_that_torch_puts_into_a_state_is_read_back():
    made, node, now = _RendezvousState(), _NodeDesc("host", 1, 2), datetime.now(UTC)
    made.round, made.complete, made.deadline, made.closed = 3, True, now, True
    made.participants, made.wait_list, made.redundancy_list, made.last_heartbeats = {node: 0}, {node}, {node}, {node: now}
    backend = ServiceBackend(Held(pickle.dumps(made)))
    backend.get_state()
    content, _ = backend.get_state()
    assert vars(backend.state) == vars(pickle.loads(content)) == vars(made)


@pytest.mark.processes
def test_the_store_is_torchs_key_value_store(keys):
    store = ServiceStore(keys, timeout_seconds=120.0)
    store.set("a/b", "1")
    assert store.get("a/b") == b"1"
    assert store.add("count", 2) == 2
    assert store.add("count", 3) == 5
    assert store.compare_set("new", "", "x") == b"x"
    assert store.compare_set("new", "y", "z") == b"x"
    assert store.compare_set("new", "x", "z") == b"z"
    assert store.check(["a/b", "count"])
    assert not store.check(["a/b", "absent"])
    assert store.delete_key("a/b")
    assert not store.delete_key("a/b")
    with pytest.raises(DistStoreError, match="did not come"):
        store.wait(["absent"], timedelta(seconds=0))


@pytest.mark.processes
def test_counting_together_loses_nothing(url):
    with ExitStack() as closing:
        stores = []
        for _ in range(2):
            own = Keys(url, "together")
            closing.callback(own.close)
            stores.append(ServiceStore(own, timeout_seconds=120.0))
        threads = [threading.Thread(target=lambda store=store: [store.add("count", 1) for _ in range(3)]) for store in stores]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120.0)
        assert stores[0].get("count") == b"6"


class Forgetful(httpx2.HTTPTransport):
    """Loses the first answer to each kind of write."""

    def __init__(self):
        super().__init__()
        self.lost = []

    def handle_request(self, request):
        response = super().handle_request(request)
        if request.method == "GET" or request.method in self.lost:
            return response
        self.lost.append(request.method)
        response.close()
        raise httpx2.ReadError("the answer is lost")


@pytest.mark.processes
def test_what_is_counted_counts_once_when_the_answer_is_lost(url):
    transport = Forgetful()
    with closing(Keys(url, "lost", transport=transport)) as keys:
        store = ServiceStore(keys, timeout_seconds=120.0)
        assert store.add("count", 1) == 1
        assert store.add("count", 1) == 2
        assert store.delete_key("count")
    assert transport.lost == ["PUT", "DELETE"]


def test_a_service_that_is_away_is_told_to_torch(monkeypatch):
    monkeypatch.setattr(rendezvous_store, "ATTEMPTS", 1)
    keys = Keys("http://127.0.0.1:9", "run")
    with pytest.raises(RendezvousConnectionError, match="does not answer"):
        ServiceBackend(keys).get_state()
    keys.close()


def parameters(endpoint, *, run="run", nodes=(1, 2), **config):
    return RendezvousParameters("kintsugi", endpoint, run, *nodes, local_addr="127.0.0.1", **config)


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (302, {"headers": {"Location": "/login"}}),
        (200, {"text": "<html>"}),
        (200, {"json": {"a": 1}}),
        (200, {"json": {"value": "no base64", "version": 1}}),
        (404, {"text": "no such page"}),
        (403, {"text": "not you"}),
        (200, {"headers": {"Content-Encoding": "gzip"}, "stream": httpx2.ByteStream(b"not packed")}),
    ],
    ids=["redirect", "page", "other JSON", "no base64", "no such page", "not you", "not packed"],
)
@pytest.mark.parametrize("ask", ["get", "put", "drop"])
def test_what_somebody_else_says_in_the_services_place_is_its_absence(monkeypatch, ask, status, said):
    """It ended the training, or was taken for an empty rendezvous."""
    monkeypatch.setattr(rendezvous_store, "ATTEMPTS", 1)
    given = {"get": ("key",), "put": ("key", b"x"), "drop": ("key",)}
    keys = Keys("http://host", "run", transport=httpx2.MockTransport(lambda _: httpx2.Response(status, **said)))
    with closing(keys), pytest.raises(ConnectionError, match=r"the service at http://host (answers|does not answer)"):
        getattr(keys, ask)(*given[ask])


def test_an_answer_that_trickles_is_given_up_in_time(monkeypatch):
    """Meanwhile torchrun's agent looked after none of its ranks."""
    monkeypatch.setattr(rendezvous_store, "IMPATIENT_SECONDS", 0.2)
    given_up = threading.Event()

    def trickle():
        connection, _ = server.accept()
        with connection, suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
            while not given_up.wait(0.02):
                connection.sendall(b" ")

    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor() as threads:
        threads.submit(trickle)
        with closing(Keys(f"http://127.0.0.1:{server.getsockname()[1]}", "run")) as keys:
            asked = threads.submit(keys.get, "key", is_patient=False)
            try:
                with pytest.raises(ConnectionError, match="does not answer"):
                    asked.result(60.0)
            finally:
                given_up.set()


@pytest.mark.processes
def test_who_comes_once_the_run_is_over_is_told_to_take_another_id(url):
    first = create(parameters(url, run="over", last_call_timeout="1"))
    first.next_rendezvous()
    first.shutdown()
    late = create(parameters(url, run="over"))
    with pytest.raises(RendezvousClosedError, match="the run of --rdzv-id over is over; start another one under an id that is new"):
        late.next_rendezvous()
    late.shutdown()


@pytest.mark.processes
def test_who_waits_in_vain_is_told_how_many_came(url):
    alone = create(parameters(url, run="alone", nodes=(3, 4), join_timeout="1"))
    with pytest.raises(
        RendezvousTimeoutError, match=r"^1 of at least 3 agents came to --rdzv-id alone within 1 s, 2 are missing; .*join_timeout"
    ):
        alone.next_rendezvous()
    alone.shutdown()


@pytest.mark.processes
def test_who_is_not_let_into_a_round_is_told_so(url):
    inside = create(parameters(url, run="full", last_call_timeout="1"))
    inside.next_rendezvous()
    late = create(parameters(url, run="full", join_timeout="1"))
    with pytest.raises(RendezvousTimeoutError, match=r"^the round that --rdzv-id full is in took no other agent in within 1 s"):
        late.next_rendezvous()
    late.shutdown()
    inside.shutdown()


def test_the_plug_in_is_registered():
    (found,) = entry_points(group="torchrun.handlers", name="kintsugi")
    assert found.load()() is create


def test_events_have_the_names_of_the_resiliency_extension():
    assert [event.value for event in RecoveryEvent] == [
        "failure_detected",
        "worker_terminated",
        "rendezvous_started",
        "rendezvous_completed",
        "worker_start_started",
        "worker_start_completed",
    ]


def agent(name, url, folder, patience=PATIENCE, *, run="two", nodes="1:2"):
    """One torchrun, in a process group of its own."""
    options = {"--rdzv-backend": "kintsugi", "--rdzv-endpoint": url.removeprefix("http://"), "--rdzv-id": run, "--nnodes": nodes}
    options |= {"--rdzv-conf": patience, "--nproc-per-node": "1", "--max-restarts": "3", "--monitor-interval": "0.1"}
    command = [sys.executable, "-m", "torch.distributed.run", *[f"{key}={value}" for key, value in options.items()]]
    log = (folder / f"{name}.log").open("wb")
    with log:
        return subprocess.Popen(
            [*command, "--local-addr=127.0.0.1", str(WORKER), str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "AGENT": name, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )


def end(process):
    """Kill an agent and its worker."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(120.0)


def reports(folder):
    return {path.name: path.read_text() for path in folder.glob("*-life*")}


def awaited(folder, is_right):
    """What workers have written once it is right, or patience is over: interpreters with torch start slowly on a busy machine."""
    deadline, pause = time.monotonic() + START_SECONDS, threading.Event()
    while not is_right(seen := reports(folder)) and time.monotonic() < deadline:
        pause.wait(0.1)
    return seen


@pytest.mark.processes
def test_two_agents_train_and_one_goes_on_alone_until_another_comes(url, tmp_path):
    with ExitStack() as closing:
        agents = {}
        for name in ("a", "b"):
            agents[name] = agent(name, url, tmp_path)
            closing.callback(end, agents[name])
        together = awaited(tmp_path, lambda seen: len(seen) >= 2)
        assert sorted(name.partition("rank")[2] for name in together) == ["0-of2", "1-of2"], logs(tmp_path)
        assert set(together.values()) == {"2"}
        end(agents["b"])
        alone = awaited(tmp_path, lambda seen: any(name.endswith("-of1") for name in seen))
        assert [text for name, text in alone.items() if name.startswith("a-") and name.endswith("rank0-of1")] == ["1"], logs(
            tmp_path
        )
        agents["c"] = agent("c", url, tmp_path)
        closing.callback(end, agents["c"])
        again = awaited(tmp_path, lambda seen: any(name.startswith("c-") for name in seen))
        assert [text for name, text in again.items() if name.startswith("c-") and name.endswith("-of2")] == ["2"], logs(tmp_path)
        (tmp_path / "end").touch()
        assert agents["a"].wait(120.0) == 0, logs(tmp_path)
        told = logs(tmp_path)
        assert "rendezvous_started" in told
        assert "rendezvous_completed" in told


@pytest.mark.processes
def test_a_spare_agent_that_was_not_needed_ends_well(url, tmp_path):
    with ExitStack() as closing:
        agents = []
        for name in ("a", "spare"):
            agents.append(agent(name, url, tmp_path, run="one", nodes="1:1"))
            closing.callback(end, agents[-1])
        keys = Keys(url, "one")
        closing.callback(keys.close)
        backend = ServiceBackend(keys)
        awaited(tmp_path, lambda seen: seen and backend.get_state() and backend.state.redundancy_list | backend.state.wait_list)
        (tmp_path / "end").touch()
        assert [one.wait(120.0) for one in agents] == [0, 0], logs(tmp_path)
        assert logs(tmp_path).count("the run ended while this agent waited to take part") == 1


@pytest.mark.processes
def test_training_goes_on_while_the_service_is_away_for_longer_than_agents_may_be_silent(tmp_path):
    database, port = tmp_path / "kintsugi.sqlite3", free_port()
    silence = threading.Event()
    with ExitStack() as closing:
        agents = []
        with service(database, "--port", str(port)) as running:
            for name in ("a", "b"):
                agents.append(agent(name, running.url, tmp_path, PATIENCE.replace("max_attempt=6", "max_attempt=3")))
                closing.callback(end, agents[-1])
            awaited(tmp_path, lambda seen: len(seen) >= 2)
        silence.wait(5.0)  # that is what is tested: agents count as dead after three
        assert logs(tmp_path).count("training goes on without the service") == 2, logs(tmp_path)
        with service(database, "--port", str(port)):
            silence.wait(2.0)
            (tmp_path / "end").touch()
            assert [one.wait(120.0) for one in agents] == [0, 0], logs(tmp_path)
    assert sorted(name.partition("-")[2] for name in reports(tmp_path)) == ["life0-rank0-of2", "life0-rank1-of2"]


def logs(folder):
    return "\n".join(path.read_text()[-3000:] for path in sorted(folder.glob("*.log")))
