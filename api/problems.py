"""Errors as RFC 9457 problem documents: the only place that knows status codes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from api.access.limits import Buckets
from api.access.tokens import InsufficientScopeError, redacted
from api.texts import advice, shortened
from kintsugi.core.errors import (
    PROBLEM_TYPE,
    AccessError,
    ConflictError,
    InfeasibleError,
    InvalidInputError,
    KintsugiError,
    NotFoundError,
    ReconfigurationError,
    TooManyRequestsError,
    UnauthenticatedError,
    UnavailableError,
)
from kintsugi.core.profile import PYDANTIC_CONFIG

MEDIA_TYPE = "application/problem+json"
CLIENT_GONE = 499
"""Status, as proxies count it, of a request whose client went away before it was answered."""
REQUEST_ID = "request_id"
"""Name of the request's id in its state."""
TEMPLATE = "template"
"""Name there of the template of the path that it is for; None where no route is."""


class MalformedBodyError(InvalidInputError):
    """The body is not JSON."""

    code = "not_json"


class UnsupportedMediaTypeError(KintsugiError):
    """The body is of another type than JSON."""

    code = "unsupported_media_type"


class BodyTooLargeError(KintsugiError):
    """The body is larger than the service takes."""

    code = "body_too_large"


class LimitReachedError(ConflictError):
    """The service holds as much as it may; the message names the setting."""

    code = "limit_reached"


class PreconditionFailedError(KintsugiError):
    """`If-Match` names a state that is over."""

    code = "precondition_failed"


_TOLD = Buckets(rate=1.0, burst=20.0, setting="")
"""Refused writes that the log tells of, by path: who asks again and again fills no disk."""

STATUS: tuple[tuple[type[KintsugiError], HTTPStatus], ...] = (
    (MalformedBodyError, HTTPStatus.BAD_REQUEST),
    (InvalidInputError, HTTPStatus.UNPROCESSABLE_ENTITY),
    (NotFoundError, HTTPStatus.NOT_FOUND),
    (ConflictError, HTTPStatus.CONFLICT),
    (InfeasibleError, HTTPStatus.CONFLICT),
    (ReconfigurationError, HTTPStatus.CONFLICT),
    (PreconditionFailedError, HTTPStatus.PRECONDITION_FAILED),
    (BodyTooLargeError, HTTPStatus.REQUEST_ENTITY_TOO_LARGE),
    (UnsupportedMediaTypeError, HTTPStatus.UNSUPPORTED_MEDIA_TYPE),
    (UnauthenticatedError, HTTPStatus.UNAUTHORIZED),
    (AccessError, HTTPStatus.FORBIDDEN),
    (TooManyRequestsError, HTTPStatus.TOO_MANY_REQUESTS),
    (UnavailableError, HTTPStatus.SERVICE_UNAVAILABLE),
)
"""Status of each branch of the error tree; the first that fits counts, and what is not here is 500."""

_PHRASES = {
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "Request Entity Too Large",
    HTTPStatus.UNPROCESSABLE_ENTITY: "Unprocessable Entity",
}
"""Which Python renamed in 3.13: a service says the same whatever version runs it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Why a request was refused (RFC 9457)."""

    __pydantic_config__ = PYDANTIC_CONFIG

    type: str
    title: str
    status: int
    detail: str
    """For people: what is wrong and the way out."""
    instance: str
    error: dict[str, Any]
    """For programs: code, field, value and message."""
    current_generation: int | None = None
    """With code stale_generation: the generation to go on from."""


def phrase_of(status: HTTPStatus) -> str:
    """A status in words, which are part of what clients are told."""
    return _PHRASES.get(status, status.phrase)


def status_of(error: KintsugiError) -> HTTPStatus:
    """The HTTP status of an error."""
    for kind, status in STATUS:
        if isinstance(error, kind):
            return status
    return HTTPStatus.INTERNAL_SERVER_ERROR


def problem_of(error: KintsugiError, *, instance: str = "") -> JSONResponse:
    """The problem document of an error, with the contract's error object in it."""
    return _document(status_of(error), str(error), error.as_dict(), instance, _headers_of(error))


def refused_value(error: RequestValidationError) -> InvalidInputError:
    """The first value of a request that cannot be, refused as all others are."""
    first = error.errors()[0]
    return InvalidInputError(advice(first["msg"]), field=str(first["loc"][-1]), value=first.get("input"))


def _headers_of(error: KintsugiError) -> dict[str, str]:
    """What HTTP wants to be told beside the document."""
    if isinstance(error, UnauthenticatedError):
        return {"WWW-Authenticate": 'Bearer realm="kintsugi"'}
    if isinstance(error, InsufficientScopeError):
        return {"WWW-Authenticate": f'Bearer realm="kintsugi", error="insufficient_scope", scope="{error.needed.value}"'}
    if isinstance(error, TooManyRequestsError):
        return {"Retry-After": str(error.retry_seconds)}
    return {}


def install(app: FastAPI) -> None:
    """Make every error of `app` a problem document."""
    app.add_exception_handler(KintsugiError, _on_kintsugi_error)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(ClientDisconnect, _on_client_gone)
    app.add_exception_handler(Exception, _on_crash)


def _document(
    status: HTTPStatus, detail: str, error: Mapping[str, Any], instance: str, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    document = {
        "type": f"{PROBLEM_TYPE}{error['code']}",
        "title": phrase_of(status),
        "status": int(status),
        "detail": _printable(detail),
        "instance": _printable(instance),
        "error": _printable(error),
    }
    if "current_generation" in error:
        document["current_generation"] = error["current_generation"]
    return JSONResponse(document, int(status), headers, MEDIA_TYPE)


def _printable(value: Any) -> Any:
    """`value` with every text fit for UTF-8, and cut: what a caller sent comes back, lone surrogates and all, escaped."""
    if isinstance(value, str):
        return shortened(value).encode(errors="backslashreplace").decode()
    if isinstance(value, Mapping):
        return {_printable(key): _printable(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_printable(item) for item in value]
    return value if value is None or isinstance(value, bool | int) else _finite(value)


def _finite(value: Any) -> Any:
    is_finite = isinstance(value, float) and value - value == 0
    return value if is_finite else str(value)


async def _on_kintsugi_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, KintsugiError)
    if request.method not in ("GET", "HEAD") and _TOLD.passes(request.scope["path"]):
        structlog.get_logger("kintsugi.api").info("refused", path=redacted(request.scope["path"]), code=error.code, why=str(error))
    return problem_of(error, instance=request.scope["path"])


async def _on_validation_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return problem_of(refused_value(error), instance=request.scope["path"])


async def _on_http_exception(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    status, path = HTTPStatus(error.status_code), request.scope["path"]
    code = {HTTPStatus.NOT_FOUND: "not_found"}.get(status, phrase_of(status).lower().replace(" ", "_"))
    message = f"{request.method} {path} is not served here: {phrase_of(status).lower()}"
    shown = {"code": code, "field": "path", "value": path, "message": message}
    return _document(status, message, shown, path, error.headers)


async def _on_client_gone(_request: Request, _error: Exception) -> Response:
    """For metrics and the log alone: within the body of its request a client went away, or was given up."""
    return Response(status_code=CLIENT_GONE)


async def _on_crash(request: Request, error: Exception) -> JSONResponse:
    path, request_id = request.scope["path"], request.scope.get("state", {}).get(REQUEST_ID, "")
    structlog.get_logger("kintsugi.api").error("crashed", path=path, request=request_id, exc_info=error)
    message = "an unexpected error in the service; its log has the details under the request's id"
    shown = {"code": "internal", "field": "", "value": None, "message": message}
    return _document(HTTPStatus.INTERNAL_SERVER_ERROR, message, shown, path, {"X-Request-Id": request_id})
