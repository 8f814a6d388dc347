"""A webhook's receiver: a real HTTP server on loopback that answers as a script says and keeps what it got."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PATIENCE_SECONDS = 120.0


@dataclass(frozen=True)
class Received:
    path: str
    headers: dict[str, str]
    body: str


@dataclass
class Receiver:
    """Answers `status_of(number)` to request number 0, 1, ...; `hold` keeps answers back until it is set."""

    url: str = ""
    status_of: Callable[[int], int] = lambda _: 204
    received: list[Received] = field(default_factory=list)
    open: threading.Event = field(default_factory=threading.Event)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def take(self, received: Received) -> int:
        with self.changed:
            number = len(self.received)
            self.received.append(received)
            self.changed.notify_all()
        self.open.wait(PATIENCE_SECONDS)
        return self.status_of(number)

    def wait_for(self, number: int) -> list[Received]:
        """The first `number` requests, once they are there."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.received) >= number, PATIENCE_SECONDS), self.received
            return self.received[:number]


@contextmanager
def receiver(port: int = 0, status_of: Callable[[int], int] = lambda _: 204) -> Iterator[Receiver]:
    """A running receiver; whatever it holds back is answered at the end."""
    result = Receiver(status_of=status_of)
    result.open.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            status = result.take(Received(self.path, dict(self.headers.items()), body))
            try:
                self.send_response(status)
                if 300 <= status < 400:
                    self.send_header("Location", f"{result.url}/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()
            except OSError:
                pass  # the sender did not wait

        def log_message(self, *arguments: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        result.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield result
        finally:
            result.open.set()
            server.shutdown()
            thread.join(PATIENCE_SECONDS)
