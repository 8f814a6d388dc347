"""Requests, decisions and the store as OpenTelemetry spans: off by default, one tree per request, sent as OTLP."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import structlog
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from starlette.testclient import TestClient

from api.app import create_app
from api.logs import job_context
from api.spans import SPANS
from tests.api.requests import EVENTS, event, new_job


@pytest.fixture
def exporter():
    exporter = InMemorySpanExporter()
    SPANS.process(SimpleSpanProcessor(exporter))
    yield exporter
    SPANS.stop()


def test_a_request_is_one_tree(exporter, client, job):
    exporter.clear()
    answer = client.post(EVENTS, json=event("a", 0, "w00"))
    made = exporter.get_finished_spans()
    (root,) = [span for span in made if span.name == "POST /v1/jobs/{job}/events"]
    spans = {span.name: span for span in made if span.context.trace_id == root.context.trace_id}
    assert root.attributes["http.response.status_code"] == 200
    assert root.attributes["kintsugi.request"] == answer.headers["X-Request-Id"]
    assert root.parent is None
    assert {"plan", "store.write", "store.read"} <= spans.keys()
    assert spans["plan"].attributes["generation"] == 1


def test_nothing_is_made_by_default(client, job):
    with SPANS.span("anything") as own:
        assert own is None


def test_spans_arrive_over_http(settings):
    received, arrived = [], threading.Event()

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self):
            received.append(ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()
            arrived.set()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        endpoint = f"http://127.0.0.1:{server.server_port}/v1/traces"
        with TestClient(create_app(settings.model_copy(update={"otel_endpoint": endpoint, "plans_ahead": False}))) as client:
            assert client.post("/v1/jobs", json=new_job()).status_code == 201
        assert arrived.wait(120.0)
        server.shutdown()
        thread.join()
    names = [
        span.name for request in received for own in request.resource_spans for scope in own.scope_spans for span in scope.spans
    ]
    assert {"POST /v1/jobs", "plan", "store.write"} <= set(names)


@pytest.mark.usefixtures("talkative")
def test_lines_name_job_generation_and_request(client, job):
    with structlog.testing.capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
        request = client.get("/v1/jobs/llama/plans/0").headers["X-Request-Id"]
    (line,) = [line for line in lines if line["event"] == "answered"]
    assert (line["job"], line["generation"], line["request"]) == ("llama", 0, request)


@pytest.mark.parametrize(
    ("path", "context"),
    [
        ("/v1/jobs/a", {"job": "a"}),
        ("/v1/jobs/a/events", {"job": "a"}),
        ("/v1/jobs/a/plans/7/trace", {"job": "a", "generation": 7}),
        ("/v1/jobs", {}),
        ("/metrics", {}),
    ],
)
def test_the_job_is_read_from_the_path(path, context):
    assert job_context(path) == context
