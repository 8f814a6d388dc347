"""What happens around every request: its size is bounded, its time is measured, its line is logged."""

import time
from http import HTTPMethod
from typing import Any
from uuid import uuid4

import structlog
from anyio import move_on_after
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bound_contextvars

from api.access.tokens import redacted
from api.logs import job_context
from api.metrics import Metrics
from api.problems import REQUEST_ID, TEMPLATE, BodyTooLargeError, problem_of
from api.spans import span

LINGERING_SECONDS, LINGERING_BYTES = 2.0, 2**28
"""What is still taken from a client that sends too much, so that it comes to read why it is refused."""
METHODS = frozenset(HTTPMethod)
"""Others are counted as one, which OpenTelemetry calls `_OTHER`: whoever makes them up adds no series."""


class BodyLimit:
    """Refuses bodies above `max_body_bytes`; nothing of them is kept, whatever still arrives."""

    def __init__(self, app: ASGIApp, max_body_bytes: int) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        declared = headers.get("content-length", "0")
        if declared.isdecimal() and int(declared[:18]) > self._max_body_bytes:
            if "expect" not in headers:  # who asks first sends nothing before it is answered
                await _linger(receive)
            response = problem_of(self._too_large(), instance=scope["path"])
            response.headers["Connection"] = "close"
            await response(scope, receive, send)
            return
        await self._app(scope, self._counted(receive), send)

    def _counted(self, receive: Receive) -> Receive:
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max_body_bytes:
                await _linger(receive)
                raise self._too_large()
            return message

        return counted

    def _too_large(self) -> BodyTooLargeError:
        message = f"must be at most {self._max_body_bytes} bytes; KINTSUGI_MAX_BODY_BYTES sets the limit"
        return BodyTooLargeError(message, field="body")


async def _linger(receive: Receive) -> None:
    """Take what is still sent, for a while: where a connection is closed over it, the answer is lost with what was not read."""
    left = LINGERING_BYTES
    with move_on_after(LINGERING_SECONDS):
        while left > 0:
            message = await receive()
            left -= len(message.get("body", b""))
            if not message.get("more_body", False):
                return


class Observation:
    """Counts, times and logs every request, and gives it an id; answers are of the type that they say."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics
        self._log = structlog.get_logger("kintsugi.api")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request, status, start = uuid4().hex, 500, time.perf_counter()
        scope.setdefault("state", {})[REQUEST_ID] = request

        async def observed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = int(message["status"])
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = request
                headers["X-Content-Type-Options"] = "nosniff"  # JSON has texts of clients: no browser is to take it for a page
            await send(message)

        with bound_contextvars(request=request, **job_context(scope["path"])), span("request") as own:
            try:
                await self._app(scope, receive, observed)
            finally:
                self._observe(scope, status, time.perf_counter() - start)
                _describe(own, scope, status, request)

    def _observe(self, scope: Scope, status: int, seconds: float) -> None:
        method, route = _operation(scope)
        self._metrics.requests.labels(method, route, str(status)).inc()
        self._metrics.request_seconds.labels(method, route).observe(seconds)
        self._log.debug("answered", method=scope["method"], path=redacted(scope["path"]), status=status, seconds=round(seconds, 6))


def _operation(scope: Scope) -> tuple[str, str]:
    """Method and template of the path, also of a request that was refused before a route answered: few, whatever is asked."""
    route = getattr(scope.get("route"), "path", None) or scope["state"].get(TEMPLATE) or "unknown"
    return scope["method"] if scope["method"] in METHODS else "_OTHER", route


def _describe(own: Any, scope: Scope, status: int, request: str) -> None:
    """Say on the request's span what became of it, in OpenTelemetry's words."""
    if own is not None:
        method, route = _operation(scope)
        own.update_name(f"{method} {route}")
        own.set_attributes(
            {
                "http.request.method": method,
                "http.route": route,
                "http.response.status_code": status,
                "kintsugi.request": request,
            }
        )
