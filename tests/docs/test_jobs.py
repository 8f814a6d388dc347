"""The example of docs/jobs.md is a whole life of a job: it runs as it stands, against the real application."""

import re
from pathlib import Path

from starlette.testclient import TestClient

import kintsugi.client
from api.app import create_app
from api.settings import Settings
from kintsugi.client import Client
from kintsugi.core import errors

ROOT = Path(__file__).parents[2]


def test_the_example_loses_a_worker_and_applies_the_plan_without_it(tmp_path, monkeypatch, capsys):
    (example,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs" / "jobs.md").read_text(), re.MULTILINE | re.DOTALL)
    app = create_app(Settings(database_url=f"sqlite:///{tmp_path}/kintsugi.sqlite3", plans_ahead=False))
    monkeypatch.chdir(ROOT)
    with TestClient(app) as served:
        monkeypatch.setattr(kintsugi.client, "Client", lambda _url: Client("http://testserver", transport=served._transport))
        exec(compile(example, "docs/jobs.md", "exec"), {})
        job = served.get("/v1/jobs/gpt2").json()
        exec(compile(example, "docs/jobs.md", "exec"), {})  # a second run changes nothing
        assert served.get("/v1/jobs/gpt2").json()["summary"] == job["summary"]
    assert "s a step" in capsys.readouterr().out
    assert (job["summary"]["generation"], job["summary"]["applied_generation"]) == (1, 1)


def test_the_errors_that_are_explained_are_there_and_each_that_is_refused_with():
    text = (ROOT / "docs" / "jobs.md").read_text()
    table = text[text.index("## When the service is away") : text.index("## How a plan stands")]
    explained = {getattr(errors, name) for name in re.findall(r"`(\w+Error)`", table)}
    refused_with = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.KintsugiError)}
    own = {errors.ReconfigurationError, errors.WorkerError, errors.KintsugiError, errors.AccessError, errors.StaleTermError}
    assert [kind for kind in refused_with - own if not issubclass(kind, tuple(explained - {errors.KintsugiError}))] == []
