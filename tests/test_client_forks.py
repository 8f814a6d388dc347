"""A client that was made before its process forked: each side has connections of its own."""

import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from kintsugi.core.errors import PROBLEM_TYPE, NotFoundError

ASKING = """
import os, sys
from kintsugi.client import Client, Patience
from kintsugi.core.errors import NotFoundError

def ask(job):
    try:
        client.plan(job)
    except NotFoundError as error:
        assert error.message == job, error.message

client = Client(sys.argv[1], patience=Patience(attempts=1))
ask("before")
child = os.fork()
if child == 0:
    with client:
        ask("child")
    os._exit(0)
_, status = os.waitpid(child, 0)
assert status == 0
ask("parent")
"""
CLOSED = """
import os, sys
from kintsugi.client import Client
from kintsugi.core.errors import UnavailableError

client = Client(sys.argv[1])
client.close()
child = os.fork()
try:
    client.plan("llama")
except UnavailableError as error:
    assert "was closed" in error.message, error.message
else:
    sys.exit("it was answered")
if child:
    _, status = os.waitpid(child, 0)
    assert status == 0
"""


class Refusing(BaseHTTPRequestHandler):
    """Says of each job that there is none, by its id, and remembers on which connection it was asked."""

    protocol_version = "HTTP/1.1"
    asked_on: dict[str, tuple[str, int]]

    def do_GET(self) -> None:
        job = self.path.split("/")[3]
        self.asked_on[job] = self.client_address
        refusal = NotFoundError(job).as_dict()
        body = json.dumps({"type": f"{PROBLEM_TYPE}{refusal['code']}", "error": refusal}).encode()
        self.send_response(404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def server():
    handler = type("Handler", (Refusing,), {"asked_on": {}})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        try:
            yield server
        finally:
            server.shutdown()
            serving.join()


def run(script, server):
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, f"http://127.0.0.1:{server.server_port}"], check=True, timeout=180.0
    )


def test_a_fork_asks_on_no_connection_of_its_parents_and_leaves_them_as_they_are(server):
    run(ASKING, server)
    asked_on = server.RequestHandlerClass.asked_on
    assert asked_on["child"] != asked_on["before"] == asked_on["parent"]


def test_a_client_that_was_closed_is_closed_in_a_fork(server):
    run(CLOSED, server)
