"""The OpenAPI document: what FastAPI knows of the routes, the schemas of all bodies, conditional reads, and recorded examples."""

import json
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from fastapi.openapi.utils import get_openapi
from starlette.routing import BaseRoute

from api.access.description import secure
from api.http.bodies import component_schemas
from api.problems import MEDIA_TYPE
from kintsugi.core.version import __version__

TITLE = "Kintsugi"
SUMMARY = "Plans for training jobs that lost or gained workers."

EXAMPLES = Path(__file__).with_name("examples.json")
"""What a service was asked and answered; a test records it anew and compares."""
JSON = "application/json"

IF_NONE_MATCH = {
    "name": "If-None-Match",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "maxLength": 1_000},
    "description": "ETags that the client has: 304 without a body where one of them is that of the answer.",
}
ETAG = {"description": "Strong tag: equal where the bytes are.", "schema": {"type": "string"}}


def description(routes: Sequence[BaseRoute]) -> dict[str, Any]:
    """The document of these routes; it takes a second."""
    document = get_openapi(title=TITLE, summary=SUMMARY, version=__version__, routes=routes)
    _complete(document)
    return document


def operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every operation with its name, such as `GET /v1/jobs`."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def _complete(document: dict[str, Any]) -> None:
    examples = _examples()
    components = document.setdefault("components", {})
    components.setdefault("schemas", {}).update(component_schemas())
    components["examples"] = {f"Problem{status}": {"value": problem} for status, problem in examples["problems"].items()}
    secure(document)
    for name, operation in operations(document):
        if name.startswith("GET "):
            _make_conditional(operation)
        _add_examples(operation, examples["operations"].get(name, {}))
        for parameter in operation.get("parameters", ()):
            if parameter["name"] in examples["parameters"]:
                parameter["example"] = examples["parameters"][parameter["name"]]


@cache
def _examples() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(EXAMPLES.read_text())
    return found


def _make_conditional(operation: dict[str, Any]) -> None:
    """Describe the entity tag of what is read as JSON."""
    answer = operation["responses"]["200"]
    if JSON in answer.get("content", {}):
        operation.setdefault("parameters", []).append(dict(IF_NONE_MATCH))
        answer.setdefault("headers", {})["ETag"] = ETAG
        operation["responses"]["304"] = {"description": "Not Modified", "headers": {"ETag": ETAG}}


def _add_examples(operation: dict[str, Any], recorded: dict[str, Any]) -> None:
    if "request" in recorded:
        operation["requestBody"]["content"][JSON]["example"] = recorded["request"]
    for status, response in operation["responses"].items():
        for media_type, content in response.get("content", {}).items():
            if media_type == MEDIA_TYPE:
                content["examples"] = {"refused": {"$ref": f"#/components/examples/Problem{status}"}}
            elif status in recorded.get("responses", {}):
                content["example"] = recorded["responses"][status]
