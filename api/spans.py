"""OpenTelemetry by option: what a request, a decision and a look into the database take, as spans.

Without `otel_endpoint` nothing is imported and a span costs one comparison. With it, spans go there as OTLP over HTTP, in
batches, from a thread that ends with the service. It needs `pip install 'kintsugi[otel]'`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kintsugi.core.errors import InvalidInputError
from kintsugi.core.version import __version__

EXPORT_TIMEOUT_SECONDS = 5


def require_opentelemetry() -> tuple[Any, Any]:
    """What exports spans, and what hands them to it in batches.

    Raises:
        InvalidInputError: it is not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        raise InvalidInputError("needs OpenTelemetry: pip install 'kintsugi[otel]'", field="otel_endpoint") from error
    return OTLPSpanExporter, BatchSpanProcessor


class Spans:
    """The spans of one process; all others ask `span`."""

    def __init__(self) -> None:
        self._tracer: Any = None
        self._provider: Any = None

    def start(self, endpoint: str) -> None:
        """Send spans to `endpoint`, such as `http://127.0.0.1:4318/v1/traces`.

        Raises:
            InvalidInputError: OpenTelemetry is not installed.
        """
        exporter, in_batches = require_opentelemetry()
        self.process(in_batches(exporter(endpoint=endpoint, timeout=EXPORT_TIMEOUT_SECONDS)))

    def process(self, processor: Any) -> None:
        """Give spans to a processor of OpenTelemetry's."""
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider

        resource = Resource.create({"service.name": "kintsugi", "service.version": __version__})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("kintsugi", __version__)

    def stop(self) -> None:
        """Send what is left, and make no more spans."""
        self._tracer = None
        if self._provider is not None:
            self._provider.shutdown()
            self._provider = None

    @contextmanager
    def span(self, name: str, **attributes: str | int | float) -> Iterator[Any]:
        """A span around a block, a child of the one around it; None where spans are off."""
        if self._tracer is None:
            yield None
            return
        with self._tracer.start_as_current_span(name, attributes=attributes) as span:
            yield span


SPANS = Spans()
"""Of this process: OpenTelemetry's context is the process's too."""
span = SPANS.span
