"""Connections to a service in a real process: no silence holds one for ever, and what is told when there can be no more."""

import json
import os
import resource
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import httpx2
import pytest
from structlog.testing import capture_logs

from api.http import connections
from kintsugi.client import Client, Patience
from kintsugi.core.job import JobSettings
from tests.builders import uniform_profile
from tests.processes import STOP_SECONDS, announced
from tests.services import Fork

pytestmark = pytest.mark.processes

LONG_REQUEST = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n"
"""Its head."""


def hold(seconds: float, *limits: int) -> None:
    """Have this process's service wait so many seconds for heads, parts of bodies and readers, with so many descriptors at most."""
    connections.HEAD_SECONDS = connections.BODY_SECONDS = connections.UNREAD_SECONDS = seconds
    os.environ["KINTSUGI_PLANS_AHEAD"] = "false"
    if limits:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@contextmanager
def holding(folder: Path, *bounds: float) -> Iterator[tuple[Fork, str]]:
    """The service with the bounds of `hold`."""
    arguments = ["serve", "--port", "0", "--database-url", f"sqlite:///{folder}/held.sqlite3", "--log-format", "json"]
    process = Fork(*arguments, alter=partial(hold, *bounds))
    try:
        yield process, announced(process.errors)
    finally:
        process.close()


def connected(url: str) -> socket.socket:
    """A connection that waits for half a minute, not longer."""
    return socket.create_connection((httpx2.URL(url).host, httpx2.URL(url).port), timeout=240.0)


def is_answered(client: socket.socket) -> bool:
    """Whether a question is answered; not where the connection was closed before it was asked."""
    client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    answer = b""
    while not answer.endswith(b'{"status":"ok"}'):
        chunk = client.recv(10_000)
        if not chunk:
            return False
        answer += chunk
    return True


def is_sent_away(url: str, begun: bytes, *, asks_before: bool = False) -> bool:
    """Whether who sends this and falls silent is sent away without a word; who was too slow to send it tries again."""
    for _ in range(50):
        with suppress(ConnectionError), connected(url) as silent:
            if not asks_before or is_answered(silent):
                silent.sendall(begun)
                return silent.recv(100) == b""
    raise AssertionError("nothing could be sent before the service closed the connection")


def test_a_request_that_never_comes_to_its_end_holds_no_connection(tmp_path: Path):
    half = b"GET /v1/jobs HTTP/1.1\r\nHost: loc"
    with holding(tmp_path, 0.2) as (_, url):
        assert is_sent_away(url, b"")
        assert is_sent_away(url, half)
        assert is_sent_away(url, half, asks_before=True)


def test_who_falls_silent_within_a_body_holds_no_connection(tmp_path: Path):
    with holding(tmp_path, 0.2) as (_, url):
        for begun in (b"", b" " * 100_000):
            assert is_sent_away(url, LONG_REQUEST + begun)


def pour(stranger: socket.socket, begun: bytes) -> None:
    """Send much more of a head than any has."""
    stranger.sendall(begun)
    for _ in range(200):
        stranger.sendall(b"a" * 2**16)


def test_a_head_without_end_is_not_taken(tmp_path: Path):
    head = b"POST /login HTTP/1.1\r\nHost: localhost\r\n"
    with holding(tmp_path, 600) as (_, url):
        for begun in (b"GET /", head + b"X: ", head + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX: "):
            with connected(url) as stranger, pytest.raises(ConnectionError):
                pour(stranger, begun)
        with connected(url) as stranger:
            stranger.sendall(head + b"X: " + b"a" * connections.MOST_HEAD_BYTES)
            assert stranger.recv(100).startswith(b"HTTP/1.1 431 ")
        assert httpx2.get(f"{url}/healthz", headers={"X": "a" * 200_000}).status_code == 200


def is_held(pid: int, client: socket.socket) -> bool:
    """Whether a process has the other end of a connection open, as the system's table of connections tells."""
    ours, theirs = (f"{ends[1]:04X}" for ends in (client.getsockname(), client.getpeername()))
    rows = [row.split() for row in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return any((row[1][-4:], row[2][-4:]) == (theirs, ours) and row[9] != "0" for row in rows)


def test_who_reads_nothing_of_what_was_asked_for_holds_no_connection(tmp_path: Path):
    question = b"GET /v1/openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with holding(tmp_path, 3.0) as (process, url), connected(url) as stuck:
        stuck.sendall(question * 100)  # whose answers are more than the system keeps for anybody
        assert stuck.recv(1) == b"H"
        while is_held(process.pid, stuck):
            pass


def test_who_goes_away_within_a_body_is_no_error_of_the_service(tmp_path: Path):
    with holding(tmp_path, 600) as (process, url):
        with connected(url) as leaving:
            leaving.sendall(LONG_REQUEST + b"{")
        count = 'kintsugi_http_requests_total{method="POST",route="/v1/jobs",status="499"} 1.0'
        while count not in (told := httpx2.get(f"{url}/metrics", timeout=240.0).text):
            assert 'status="500"' not in told
        process.send_signal(signal.SIGTERM)
        process.wait(STOP_SECONDS)
        assert "Traceback" not in process.told()


def test_who_waits_for_an_answer_keeps_the_connection(tmp_path: Path):
    with holding(tmp_path, 1.5) as (_, url), Client(url, patience=Patience(attempts=1)) as client:
        client.create_job(job="a", profile=uniform_profile(4), workers=6, settings=JobSettings(num_microbatches=8))
        assert client.plan_after("a", 0, wait_seconds=5) is None


def test_as_many_connections_are_taken_as_the_system_allows_and_then_it_is_told(tmp_path: Path):
    with holding(tmp_path, 600, 100, 150) as (process, url), ExitStack() as held:
        assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE) == (150, 150)
        for _ in range(200):
            held.enter_context(connected(url))
        with open(process.errors, "rb", closefd=False) as errors:
            told = next(line for line in errors if b"no descriptor is left" in line)
        assert json.loads(told)["limit"] == 150
        held.close()
        with httpx2.Client(transport=httpx2.HTTPTransport(retries=10)) as http:
            assert http.get(f"{url}/healthz").status_code == 200


def test_what_is_no_http_is_told_once_and_with_what_it_looks_like(tmp_path: Path):
    with holding(tmp_path, 600) as (process, url):
        for strange in (b"\x16\x03\x01\x02\x00\x01", b"SSH-2.0-nothing\r\n"):
            with connected(url) as stranger:
                stranger.sendall(strange)
                assert stranger.recv(100).startswith(b"HTTP/1.1 400 ")
        assert httpx2.get(f"{url}/healthz", headers={"Connection": "Upgrade", "Upgrade": "websocket"}).status_code == 200
        process.send_signal(signal.SIGTERM)
        process.wait(STOP_SECONDS)
        told, end = map(json.loads, process.told().splitlines())
    assert end["event"] == "stops"
    assert (told["event"], told["address"]) == ("a client speaks TLS, the service does not", "127.0.0.1")
    assert "http://" in told["way_out"]


def test_what_was_not_told_is_counted():
    now = [0.0]
    gibberish = connections.Gibberish(lambda: now[0])
    with capture_logs() as lines:
        for now[0] in (0.0, 1.0, 59.0, 60.0):
            gibberish.tell(("10.0.0.1", 9), is_tls=False)
    assert [(line["event"], line.get("untold")) for line in lines] == [
        ("a client sends what is no HTTP", None),
        ("a client sends what is no HTTP", 2),
    ]
