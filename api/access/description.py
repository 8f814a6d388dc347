"""What the OpenAPI document says of tokens, and of the refusals that any operation may meet."""

from http import HTTPStatus
from typing import Any

from api.access.needs import need_of
from api.http.bodies import refuses

SCHEME = "token"
REFUSALS = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.TOO_MANY_REQUESTS)


def secure(document: dict[str, Any]) -> None:
    """Add to every operation of an OpenAPI document what it asks of a token, and how it refuses others."""
    schemes = document.setdefault("components", {}).setdefault("securitySchemes", {})
    schemes[SCHEME] = {
        "type": "http",
        "scheme": "bearer",
        "description": "A token of `kintsugi token create`; needed beyond loopback, and wherever one was ever issued.",
    }
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            _secure(method.upper(), path, operation)


def _secure(method: str, path: str, operation: dict[str, Any]) -> None:
    need = need_of(method, path)
    if need.is_open:
        operation["security"] = []
        return
    operation["security"] = [{SCHEME: []}]
    operation["x-kintsugi-scope"] = need.scope.value
    operation["x-kintsugi-all-jobs"] = need.all_jobs
    for status in REFUSALS:
        operation["responses"].setdefault(str(int(status)), refuses(status)[int(status)])
