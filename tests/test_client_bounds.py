"""What one answer may take of the client, whoever gives it."""

import gzip
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx2
import pytest

from kintsugi.client import Client, Patience, bounds
from kintsugi.client.connection import LONGEST_PAUSE_SECONDS
from kintsugi.core.errors import PROBLEM_TYPE, NotFoundError, UnavailableError


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"], ids=["head", "body"])
@pytest.mark.parametrize("ask", [lambda client: client.plan("llama"), lambda client: next(client.follow("llama"))])
def test_an_answer_that_trickles_for_ever_is_given_up_in_time(head, ask):
    """Each byte comes soon after the one before."""
    given_up, patience = threading.Event(), Patience(timeout_seconds=0.2, attempts=1)

    def trickle():
        connection, _ = server.accept()
        with connection, suppress(OSError):
            connection.sendall(head)
            while not given_up.wait(0.02):
                connection.sendall(b":")

    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        ThreadPoolExecutor() as threads,
        Client(f"http://127.0.0.1:{server.getsockname()[1]}", patience=patience) as client,
    ):
        threads.submit(trickle)
        asked = threads.submit(ask, client)
        try:
            with pytest.raises(UnavailableError, match=r"does not answer: (timed out|.* in time)"):
                asked.result(240.0)
        finally:
            given_up.set()


@pytest.mark.parametrize("status", [200, 409])
def test_an_answer_that_unpacks_to_more_than_any_of_the_services_is_not_read_to_its_end(monkeypatch, status):
    monkeypatch.setattr(bounds, "LARGEST_ANSWER_BYTES", 100_000)
    packed = gzip.compress(b" " * 1_000_000)
    unread = iter([packed[:300], packed[300:600], b"never asked for"])
    bomb = httpx2.Response(status, headers={"Content-Encoding": "gzip"}, content=unread)
    client = Client("http://service", patience=Patience(attempts=1), transport=httpx2.MockTransport(lambda _: bomb))
    with client, pytest.raises(UnavailableError, match="more than 100000 bytes"):
        client.plan("llama")
    assert list(unread)


@pytest.mark.parametrize("ask", [lambda client: client.plan("llama"), lambda client: next(client.follow("llama"))])
def test_an_answer_that_is_packed_more_than_once_is_not_unpacked(ask):
    """A few letters of it may become more than memory holds."""
    bomb = gzip.compress(gzip.compress(b" " * 1_000_000))
    unread = iter([bomb])
    head = {"Content-Type": "text/event-stream", "Content-Encoding": "gzip, gzip"}
    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, headers=head, content=unread))
    client = Client("http://service", patience=Patience(attempts=1), transport=transport)
    with client, pytest.raises(UnavailableError, match="packed more than once: gzip, gzip"):
        ask(client)
    assert list(unread) == [bomb]


def test_an_answer_that_comes_twice_is_not_taken_for_that_to_the_next_question():
    """A proxy that repeats itself has left the second one in the client's hands by then."""

    def answer(connection, repeats):
        with connection, connection.makefile("rb") as asked, suppress(OSError):
            while line := asked.readline():
                while asked.readline().strip():
                    pass
                connection.sendall(repeats * refusal(line.split()[1].decode()))

    def serve():
        for repeats in (2, 1):
            answer(server.accept()[0], repeats)

    with ThreadPoolExecutor() as threads, socket.create_server(("127.0.0.1", 0)) as server:
        threads.submit(serve)
        with Client(f"http://127.0.0.1:{server.getsockname()[1]}", patience=Patience(retry_seconds=0.0)) as client:
            for job in ("one", "two", "three"):
                with pytest.raises(NotFoundError, match=f"/v1/jobs/{job}"):
                    client.job(job)


def test_a_shorter_pause_than_the_clients_own_takes_none_of_its_patience(monkeypatch):
    """Who is told to come back at once, by a proxy before a service that starts, would have asked for the last time then."""
    pauses = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    asking = [httpx2.Response(status, headers={"Retry-After": pause}) for status, pause in ((429, "7"), (503, "0"), (503, "999"))]
    answers = iter([*asking, httpx2.Response(204)])
    patience = Patience(retry_seconds=1.0, longest_retry_seconds=1.0)
    with Client("http://service", patience=patience, transport=httpx2.MockTransport(lambda _: next(answers))) as client:
        assert client.plan_after("llama", 0) is None
    assert pauses == [7.0, 1.0, LONGEST_PAUSE_SECONDS]


def refusal(path):
    """What the service answers with where nothing is."""
    body = json.dumps({"type": f"{PROBLEM_TYPE}not_found", "error": NotFoundError(f"there is no {path}").as_dict()}).encode()
    return b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
