"""The API's description is a promise: a change to it is a change to `openapi.json`, made on purpose."""

import json
from pathlib import Path

SNAPSHOT = Path(__file__).with_name("openapi.json")

HOW = "the API has changed; if that is wanted, run: python -m tests.api.test_openapi"


def description(client):
    return client.get("/v1/openapi.json").json()


def test_the_description_is_the_promised_one(client):
    assert description(client) == json.loads(SNAPSHOT.read_text()), HOW


def test_every_operation_tells_how_it_refuses(client):
    document = description(client)
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
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


if __name__ == "__main__":
    from api.app import create_app
    from api.settings import Settings

    document = create_app(Settings(database_url="sqlite:///unused.sqlite3")).openapi()
    SNAPSHOT.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
