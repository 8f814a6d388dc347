"""The API's description is a promise: a change to it is a change to `openapi.json`, made on purpose."""

import json
import threading
from pathlib import Path

import jsonschema
import pytest

from api import app as application
from api.http.description import EXAMPLES, operations
from tests.api import story

SNAPSHOT = Path(__file__).with_name("openapi.json")

HOW = "the API has changed; if that is wanted, run: python -m tests.api.story && python -m tests.api.http.test_openapi"
PROBLEM = "application/problem+json"


def description(client):
    return client.get("/v1/openapi.json").json()


def test_the_description_is_the_promised_one(client):
    assert description(client) == json.loads(SNAPSHOT.read_text()), HOW


def test_nobody_waits_for_the_description_of_others(client, monkeypatch):
    makers = []
    made = client.app.openapi()
    monkeypatch.setattr(application, "_description", lambda: makers.append(threading.current_thread()) or made)
    application._written_description.cache_clear()
    assert client.get("/v1/openapi.json").content == client.get("/v1/openapi.json").content
    (maker,) = makers
    assert maker is not client.portal.call(threading.current_thread)


def test_every_operation_tells_how_it_refuses(client):
    document = description(client)
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert operation.get("summary"), f"{method} {path}"
            refusals = {status for status in operation["responses"] if status.startswith(("4", "5"))}
            assert refusals or path in ("/healthz", "/metrics"), f"{method} {path}"
            for status in refusals:
                content = operation["responses"][status]["content"]
                assert list(content) == ["application/problem+json"], f"{method} {path} {status}"


def test_every_reference_leads_somewhere(client):
    document = description(client)
    text = json.dumps(document)
    names = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert names <= set(document["components"]["schemas"])
    assert "Problem" in names


def contents(operation):
    """Every body of an operation: what it is called, its media type and description."""
    if "requestBody" in operation:
        yield "request", *next(iter(operation["requestBody"]["content"].items()))
    for status, response in operation["responses"].items():
        for media_type, content in response.get("content", {}).items():
            yield status, media_type, content


def example_of(document, content):
    """The example of a body, looked up where it stands elsewhere."""
    if "example" in content:
        return content["example"]
    (reference,) = content["examples"].values()
    return document["components"]["examples"][reference["$ref"].rpartition("/")[2]]["value"]


def test_every_body_has_an_example_that_its_schema_allows(client):
    document = description(client)
    for name, operation in operations(document):
        for part, media_type, content in contents(operation):
            if media_type == "text/event-stream":
                continue  # its events are those of the answers that have examples
            assert "example" in content or "examples" in content, f"{name} {part}: add it to tests/api/story.py; {HOW}"
            example = example_of(document, content)
            if media_type.endswith("json"):
                jsonschema.validate(example, {**content["schema"], "components": document["components"]})
            if part.isdigit() and media_type == PROBLEM:
                assert str(example["status"]) == part


def test_every_parameter_of_a_path_has_an_example(client):
    for name, operation in operations(description(client)):
        for parameter in operation.get("parameters", ()):
            assert parameter["in"] != "path" or "example" in parameter, f"{name} {parameter['name']}"


def test_what_is_read_is_read_conditionally(client):
    for name, operation in operations(description(client)):
        is_json = "application/json" in operation["responses"].get("200", {}).get("content", {})
        assert ("304" in operation["responses"]) == (name.startswith("GET ") and is_json), name


def test_the_examples_are_what_a_service_answers():
    assert story.recorded() == json.loads(EXAMPLES.read_text()), HOW


def test_an_example_that_does_not_fit_is_noticed(client):
    document = description(client)
    schema = {"$ref": "#/components/schemas/Problem", "components": document["components"]}
    problem = document["components"]["examples"]["Problem404"]["value"]
    jsonschema.validate(problem, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**problem, "status": "404"}, schema)


if __name__ == "__main__":
    from api.app import create_app
    from api.settings import Settings

    document = create_app(Settings(database_url="sqlite:///unused.sqlite3")).openapi()
    SNAPSHOT.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
