"""The API server of a cluster, as far as a watcher of pods sees it: plays a recorded list and recorded watch streams over HTTP."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


def pod(
    name: str, uid: str, worker: str, version: int, phase: str = "Running", *, ready: bool = True, **meta: Any
) -> dict[str, Any]:
    """A pod as the API server shows it, reduced to what the watcher reads."""
    labels = {"kintsugi/job": "llama", "kintsugi/worker": worker}
    created = f"2026-01-31T12:00:{version:02}Z"
    metadata = {"name": name, "uid": uid, "labels": labels, "resourceVersion": str(version), "creationTimestamp": created, **meta}
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return {"metadata": metadata, "spec": {"nodeName": "h01"}, "status": {"phase": phase, "conditions": conditions}}


@contextmanager
def api_server(
    lists: list[dict[str, Any]], streams: list[list[dict[str, Any]]]
) -> Iterator[tuple[str, list[dict[str, list[str]]]]]:
    """Its address, and the queries that it got; the last watch stays open until the end."""
    queries: list[dict[str, list[str]]] = []
    ended = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            query = parse_qs(parts.query)
            queries.append(query)
            assert parts.path == "/api/v1/namespaces/training/pods"
            if "watch" in query:
                self._play(streams.pop(0) if streams else None)
            else:
                body = json.dumps(lists.pop(0) if len(lists) > 1 else lists[0]).encode()
                self._begin({"Content-Length": str(len(body))})
                self.wfile.write(body)

        def _play(self, stream: list[dict[str, Any]] | None) -> None:
            self._begin({"Transfer-Encoding": "chunked"})
            for change in stream or ():
                line = json.dumps(change).encode() + b"\n"
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            if stream is None:
                ended.wait(120.0)
            self.wfile.write(b"0\r\n\r\n")

        def _begin(self, headers: dict[str, str]) -> None:
            self.send_response(200)
            for name, value in {"Content-Type": "application/json", **headers}.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", queries
        finally:
            ended.set()
            server.shutdown()
            thread.join(120.0)
