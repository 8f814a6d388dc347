"""The service in real processes: killed, restarted, doubled and stopped."""

import fcntl
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest

from api.settings import settings_of
from kintsugi.cli import main
from kintsugi.client import Client, Patience
from kintsugi.core.errors import InfeasibleError, StaleGenerationError
from kintsugi.core.job import JobSettings
from kintsugi.core.membership import Event, EventKind
from kintsugi.core.messages import Report, ReportStatus
from tests import processes
from tests.builders import uniform_profile
from tests.processes import ServiceProcess
from tests.services import outcome_of, service

pytestmark = pytest.mark.processes

SETTINGS = JobSettings(num_microbatches=8)


def failed(name: str, generation: int, worker: str) -> Event:
    return Event(kind=EventKind.WORKER_FAILED, id=name, generation=generation, worker=worker)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kintsugi.cli", *arguments], capture_output=True, text=True, timeout=240.0, check=False
    )


PIPE_ROOM = 1_000
"""Bytes that may be left in a full pipe, for a line is not parted."""
SEARCHING = """
import threading
from api.service import Service
from kintsugi.cli import main, serve
serve.LEAVING_SECONDS = 0.1
def search(*_, **__):
    print("searching", flush=True)
    threading.Event().wait()
Service.create_job = search
main()
"""


def test_a_search_without_end_does_not_keep_the_service_from_ending(tmp_path: Path):
    environment = {**os.environ, "KINTSUGI_SHUTDOWN_SECONDS": "1", "KINTSUGI_PLANS_AHEAD": "false"}
    serving = [sys.executable, "-c", SEARCHING, "serve", "--port", "0", "--database-url", f"sqlite:///{tmp_path}/one.sqlite3"]
    with subprocess.Popen(serving, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stderr is not None
            assert process.stdout is not None
            url = processes.announced(process.stderr.fileno())
            with ThreadPoolExecutor(1) as asking, Client(url, patience=Patience(attempts=1)) as client:
                asked = asking.submit(client.create_job, job="a", profile=uniform_profile(4), workers=6, settings=SETTINGS)
                assert process.stdout.readline() == b"searching\n"
                process.terminate()
                assert process.wait(processes.STOP_SECONDS) == 1
                assert asked.exception(processes.STOP_SECONDS) is not None
        finally:
            process.kill()


BREAKING = """
from api.waiting.heartbeats_watch import HeartbeatWatch
from api.settings import settings_of
from kintsugi.cli import main
async def run(*_):
    raise RuntimeError("a mistake of ours")
HeartbeatWatch.run = run
main()
"""


def test_a_service_that_would_hear_nobody_any_more_ends(tmp_path: Path):
    serving = [sys.executable, "-c", BREAKING, "serve", "--port", "0", "--database-url", f"sqlite:///{tmp_path}/one.sqlite3"]
    result = subprocess.run(serving, capture_output=True, text=True, timeout=240.0, check=False)
    assert result.returncode == 1
    assert "a mistake of ours" in result.stderr
    assert "a part of it ended by the error above" in result.stderr


def test_after_a_kill_everything_is_there_and_the_next_event_is_answered(tmp_path: Path):
    database = tmp_path / "kintsugi.sqlite3"
    with service(database) as first, Client(first.url) as client:
        client.create_job(job="llama", profile=uniform_profile(4), workers=6, settings=SETTINGS)
        answers = [client.post_event("llama", failed("a", 0, "w01"))]
        client.report("llama", Report(generation=1, status=ReportStatus.APPLIED))
        answers.append(client.post_event("llama", failed("b", 1, "w04")))
        events, job = client.events("llama"), client.job("llama")
        first.kill()
    with service(database) as second, Client(second.url) as client:
        assert client.job("llama") == job
        assert client.events("llama") == events
        assert [client.plan_at("llama", answer.generation).decision for answer in answers] == [
            answer.decision for answer in answers
        ]
        assert client.post_event("llama", failed("b", 1, "w04")) == answers[1]
        third = client.post_event("llama", failed("c", 2, "w02"))
        assert third.generation == 3
        assert third.decision.previous_plan == answers[0].decision.plan


def test_a_service_killed_while_it_writes_loses_nothing_that_it_answered(tmp_path: Path):
    database = tmp_path / "kintsugi.sqlite3"
    answered: list[tuple[str, int]] = []
    several = threading.Event()
    with service(database) as first:
        with Client(first.url) as client:
            client.create_job(job="llama", profile=uniform_profile(4), workers=6, settings=SETTINGS)

        def report_until_killed() -> None:
            speeds = (0.5, 1.0)
            with httpx2.Client(base_url=first.url, timeout=240.0) as http:
                for number in range(10_000):
                    body = {"kind": "straggler", "id": f"e{number}", "generation": number, "worker": "w00"}
                    try:
                        response = http.post("/v1/jobs/llama/events", json={**body, "speed_ratio": speeds[number % 2]})
                    except httpx2.TransportError:
                        return
                    answered.append((f"e{number}", response.json()["generation"]))
                    if number == 9:
                        several.set()

        thread = threading.Thread(target=report_until_killed, daemon=True)
        thread.start()
        assert several.wait(120.0)
        first.kill()
        thread.join(120.0)
        assert not thread.is_alive()
    with service(database) as second, Client(second.url) as client:
        stored = [record for record in _all_events(client) if record.event.id in dict(answered)]
        assert [(record.event.id, record.generation) for record in stored] == answered
        latest = client.plan("llama").generation
        assert latest in (len(answered), len(answered) + 1)
        assert client.post_event("llama", failed("next", latest, "w05")).generation == latest + 1


def _all_events(client: Client) -> list:
    records, cursor = [], None
    while True:
        page = client.events("llama", cursor=cursor, limit=1000)
        records += page.events
        cursor = page.next_cursor
        if cursor is None:
            return records


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> Iterator[tuple[ServiceProcess, ServiceProcess]]:
    """Two services on one database; each test has a job of its own there."""
    database = tmp_path_factory.mktemp("two") / "kintsugi.sqlite3"
    with service(database) as one, service(database) as other:
        yield one, other


def test_two_processes_on_one_database_never_double_a_generation(two):
    one, other = two
    with Client(one.url) as client:
        client.create_job(job="llama", profile=uniform_profile(4), workers=6, settings=SETTINGS)

        def strike(number: int) -> int | None:
            with Client((one, other)[number % 2].url) as own:
                kind = (EventKind.WORKER_FAILED, EventKind.WORKER_JOINED)[number // 6 % 2]
                worker = f"w0{number % 6}"
                for _ in range(40):
                    generation = own.plan("llama").generation
                    event = Event(kind=kind, id=f"e{number}", generation=generation, worker=worker)
                    try:
                        return own.post_event("llama", event).generation
                    except StaleGenerationError:
                        continue
                    except InfeasibleError:
                        return None
                raise AssertionError("always stale")

        with ThreadPoolExecutor(6) as pool:
            generations = [generation for generation in pool.map(strike, range(18)) if generation is not None]
        latest = client.plan("llama").generation
        plans = [client.plan_at("llama", generation) for generation in range(latest + 1)]
        assert [plan.decision.plan.generation for plan in plans] == list(range(latest + 1))
        records = _all_events(client)
        assert sorted(record.event.id for record in records) == sorted(f"e{number}" for number in range(18))
        assert [record.number for record in records] == list(range(1, 19))
        assert max(generations) == latest
        with Client(other.url) as second:
            assert second.plan("llama") == plans[-1]
            assert second.job("llama") == client.job("llama")


def test_who_waits_at_one_process_is_woken_by_a_plan_of_another(two):
    one, other = two
    with Client(one.url) as client, Client(other.url) as second:
        client.create_job(job="gemma", profile=uniform_profile(4), workers=6, settings=SETTINGS)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(second.plan_after, "gemma", 0, wait_seconds=50)
            client.post_event("gemma", failed("a", 0, "w01"))
            answer = waiting.result(240.0)
        assert answer is not None
        assert answer.generation == 1


def test_sigterm_answers_those_who_wait_and_ends_well(tmp_path: Path):
    with processes.service(tmp_path / "kintsugi.sqlite3") as process, Client(process.url) as client:
        client.create_job(job="llama", profile=uniform_profile(4), workers=2, settings=SETTINGS)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(client.plan_after, "llama", 0, wait_seconds=50)
            while "kintsugi_waiting_clients 1.0" not in httpx2.get(f"{process.url}/metrics").text:
                pass
            assert process.terminate() == 0
            assert waiting.result(240.0) is None


@contextmanager
def half_a_request(url: str) -> Iterator[None]:
    """Meanwhile the service waits for the rest of one."""
    head = "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n"
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port)) as half:
        half.sendall(f"{head}Expect: 100-continue\r\n\r\n{{".encode())
        assert half.recv(100).startswith(b"HTTP/1.1 100 ")
        yield


def test_each_line_of_a_stop_is_an_object_and_a_request_that_is_called_off_shows_no_traceback(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("KINTSUGI_SHUTDOWN_SECONDS", "1")
    with processes.service(tmp_path / "kintsugi.sqlite3", "--log-format", "json") as running:
        with half_a_request(running.url):
            assert running.terminate() == 0
        stops, line = map(json.loads, running.process.stderr)
    assert (stops["event"], stops["level"]) == ("stops", "info")
    assert (line["logger"], line["level"]) == ("uvicorn.error", "error")
    assert "Cancel 1 running task" in line["event"]


def test_a_service_that_is_interrupted_twice_waits_for_nobody_and_ends_in_order(tmp_path: Path):
    with processes.service(tmp_path / "kintsugi.sqlite3", "--log-format", "json") as running:
        with half_a_request(running.url), Client(running.url) as client:
            client.create_job(job="llama", profile=uniform_profile(4), workers=2, settings=SETTINGS)
            running.process.send_signal(signal.SIGINT)
            while json.loads(running.process.stderr.readline())["event"] != "stops":
                pass
            running.process.send_signal(signal.SIGINT)
            assert running.process.wait(processes.STOP_SECONDS) == 0
        assert running.process.stderr.read() == b""
    with sqlite3.connect(tmp_path / "kintsugi.sqlite3") as database:
        assert database.execute("select route, status from audit where status = 201").fetchall() == [("/v1/jobs", 201)]


def test_a_service_whose_log_nobody_takes_answers_and_ends_as_ever(tmp_path: Path):
    with processes.service(tmp_path / "kintsugi.sqlite3") as running, Client(running.url) as client:
        running.process.stderr.close()
        client.create_job(job="llama", profile=uniform_profile(4), workers=6, settings=SETTINGS)
        assert client.post_event("llama", failed("a", 0, "w01")).generation == 1
        assert running.terminate() == 0


def test_a_service_whose_log_nobody_reads_answers_and_ends_as_ever(tmp_path: Path):
    with processes.service(tmp_path / "kintsugi.sqlite3", "--log-level", "debug") as running, Client(running.url) as client:
        errors = running.process.stderr.fileno()
        fcntl.fcntl(errors, fcntl.F_SETPIPE_SZ, 4_096)
        client.create_job(job="llama", profile=uniform_profile(4), workers=6, settings=SETTINGS)
        for _ in range(50):
            client.plan("llama")
        assert client.post_event("llama", failed("a", 0, "w01")).generation == 1
        assert running.terminate() == 0
        assert len(os.read(errors, 65_536)) >= 4_096 - PIPE_ROOM, "it was full"


@pytest.mark.parametrize("is_chunked", [False, True])
def test_who_sends_too_much_without_looking_up_reads_why_it_is_refused(tmp_path: Path, is_chunked):
    body = b" " * 40_000_000  # more than sockets hold, so that a service that reads nothing resets the connection
    with service(tmp_path / "kintsugi.sqlite3") as process:
        connection = HTTPConnection(urlsplit(process.url).netloc, timeout=240.0)
        with closing(connection):
            sent = (body[:1_000_000] for _ in range(40)) if is_chunked else body
            connection.request("POST", "/v1/jobs", sent, {"Content-Type": "application/json"}, encode_chunked=is_chunked)
            answer = connection.getresponse()
            assert (answer.status, json.load(answer)["error"]["code"]) == (413, "body_too_large")


def test_a_port_that_is_taken_is_told(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = outcome_of("serve", "--port", str(port), "--database-url", f"sqlite:///{tmp_path / 'kintsugi.sqlite3'}")
    assert result.returncode == 2
    assert f"port: cannot listen on 127.0.0.1 port {port}" in result.stderr
    assert "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("host", ["no..host", "300.1.1.1", "192.0.2.1"])
def test_a_host_that_cannot_be_one_is_told(host: str, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("KINTSUGI_REQUIRE_TOKENS", "never")
    where = f"sqlite:///{tmp_path / 'kintsugi.sqlite3'}"
    result = outcome_of("serve", "--host", host, "--port", "0", "--database-url", where)
    assert result.returncode == 2
    assert f"host: cannot listen on {host} port 0" in result.stderr
    assert "name an address of this machine" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--port", "99999"], "port: must be less than or equal to 65535 (value: 99999)"),
        (["--port", "x"], "--port"),
        (["--database-url", "nonsense"], "database_url"),
        (["--database-url", "sqlite://"], "database_url"),
        (["--database-url", "sqlite:////nowhere/at/all.sqlite3"], "database"),
        (["--log-level", "loud"], "log_level"),
    ],
)
def test_settings_that_cannot_be(arguments, message, capsys):
    """In this process: each of them ends before anything listens."""
    with pytest.raises(SystemExit) as ended:
        main(["serve", *arguments])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


SERVE, TOKEN = ["serve", "--port", "0"], ["token", "list"]


@pytest.mark.parametrize(
    ("command", "setting", "message"),
    [
        (SERVE, "TRUSTED_PROXIES=10.0.0.5", 'such as ["10.0.0.5/32"]'),
        (SERVE, 'TRUSTED_PROXIES=["10.0.0.5/8"]', "write 10.0.0.0/8 for all of it, 10.0.0.5/32 for one"),
        (SERVE, 'WEBHOOK_NETWORKS=["10.0.0.x"]', "'10.0.0.x' is no network; write a JSON list such as [\"10.0.0.0/8\"]"),
        (SERVE, "WEBHOOK_NETWORKS=10.0.0.0/8", 'such as ["10.0.0.0/8"]'),
        (SERVE, "OTEL_ENDPOINT=foo", "http://127.0.0.1:4318/v1/traces"),
        (SERVE, "MAX_REQUESTS_PER_SECOND=1e-320", "0.001"),
        (SERVE, "LOG_LEVEL=loud", "must be 'debug', 'info', 'warning' or 'error' (value: 'loud')"),
        (SERVE, "PLANS_AHEAD=perhaps", "must be a valid boolean (value: 'perhaps')"),
        (TOKEN, "PORT=abc", "must be a valid integer (value: 'abc')"),
        (["replay"], "PORT=abc", "integer"),
    ],
)
def test_a_variable_that_cannot_be_is_named_by_every_command(command, setting, message, capsys, monkeypatch):
    name, value = setting.split("=")
    monkeypatch.setenv(f"KINTSUGI_{name}", value)
    told = refusal(command, capsys)
    assert told.startswith(f"kintsugi: KINTSUGI_{name}: ")
    assert message in told


@pytest.mark.parametrize(
    ("variable", "meant"),
    [("KINTSUGI_PROT", "KINTSUGI_PORT"), ("KINTSUGI_REQUIRE_TOKEN", "KINTSUGI_REQUIRE_TOKENS")],
)
def test_a_variable_that_is_nearly_a_setting_is_refused(variable, meant, capsys, monkeypatch):
    monkeypatch.setenv(variable, "a secret")
    assert refusal(SERVE, capsys) == f"kintsugi: {variable}: is no setting of the service; {meant} is one\n"


@pytest.mark.parametrize("variable", ["KINTSUGI_HOST", "KINTSUGI_TLS_CERTIFICATE", "KINTSUGI_OVERLAY_LOG", "KINTSUGI_PORT"])
def test_a_setting_that_is_empty_is_refused(variable, capsys, monkeypatch):
    monkeypatch.setenv(variable, "")
    assert refusal(["replay"], capsys) == f"kintsugi: {variable}: is empty; give it a value, or unset it for the default\n"


@pytest.mark.parametrize("variable", ["KINTSUGI_TOKEN", "KINTSUGI_CA_FILE", "KINTSUGI_SERVICE_HOST", "KINTSUGI_PORT_8000_TCP_PORT"])
def test_other_variables_are_nobodys_business(variable, monkeypatch):
    monkeypatch.setenv(variable, "8000")
    settings_of()


def test_a_planner_of_overlays_that_is_not_there_is_told_by_its_variable(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("KINTSUGI_OVERLAY_SYNCHRONIZATION", "absent:function")
    told = refusal([*SERVE, "--database-url", f"sqlite:///{tmp_path}/kintsugi.sqlite3"], capsys)
    assert told.startswith("kintsugi: KINTSUGI_OVERLAY_SYNCHRONIZATION: names no function")


def test_spans_without_opentelemetry_are_refused(capsys, monkeypatch):
    monkeypatch.setenv("KINTSUGI_OTEL_ENDPOINT", "http://127.0.0.1:4318/v1/traces")
    exporter = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
    monkeypatch.setitem(sys.modules, exporter, None)  # an import of it fails, as where it is not installed
    assert "otel_endpoint: needs OpenTelemetry: pip install 'kintsugi[otel]'" in refusal(SERVE, capsys)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"": "{path}"}, "KINTSUGI_OVERLAY_LOG_JOB: is needed too"),
        ({"": "{path}/nothing", "_JOB": "llama"}, "KINTSUGI_OVERLAY_LOG: cannot be read"),
        ({"": "{path}/bytes", "_JOB": "llama"}, "KINTSUGI_OVERLAY_LOG: cannot be read"),
        ({"": "{path}/text", "_JOB": "llama"}, "KINTSUGI_OVERLAY_LOG: is no such log"),
        ({"_TOKEN": "guessed"}, "KINTSUGI_OVERLAY_LOG_TOKEN: is no token"),
    ],
)
def test_the_log_of_another_scheduler_that_cannot_be_is_told(settings, message, tmp_path, capsys, monkeypatch):
    (tmp_path / "bytes").write_bytes(b"\xff")
    (tmp_path / "text").write_text("nothing\n")
    for name, value in settings.items():
        monkeypatch.setenv(f"KINTSUGI_OVERLAY_LOG{name}", value.format(path=tmp_path))
    assert message in refusal([*SERVE, "--database-url", f"sqlite:///{tmp_path}/kintsugi.sqlite3"], capsys)


def refusal(arguments, capsys):
    """What a command says that ends before it does anything."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    return told


def test_help_is_there_without_heavy_imports():
    code = "import sys\nfrom kintsugi.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\nprint(sorted(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240.0, check=True)
    modules = result.stdout.rsplit("\n", 2)[-2]
    assert "serve" in result.stdout
    for heavy in ("torch", "fastapi", "numpy", "sqlalchemy", "ortools"):
        assert f"'{heavy}'" not in modules


def test_the_service_needs_no_torch():
    code = "import sys\nfrom api.app import create_app\nsys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], timeout=240.0, check=True)


def test_an_unknown_command_is_a_misuse_also_as_json():
    assert run("mend").returncode == 2
    result = run("mend", "--format", "json")
    assert result.returncode == 2
    assert json.loads(result.stdout)["error"]["code"] == "invalid_input"
