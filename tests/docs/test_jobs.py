"""The example of docs/jobs.md is a whole life of a job: it runs as it stands, against the real application."""

import re
from pathlib import Path

from starlette.testclient import TestClient

import kintsugi.client
from api.app import create_app
from api.settings import Settings
from kintsugi.client import Client

ROOT = Path(__file__).parents[2]


def test_the_example_loses_a_worker_and_applies_the_plan_without_it(tmp_path, monkeypatch, capsys):
    (example,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs" / "jobs.md").read_text(), re.MULTILINE | re.DOTALL)
    app = create_app(Settings(database_url=f"sqlite:///{tmp_path}/kintsugi.sqlite3", plans_ahead=False))
    monkeypatch.chdir(ROOT)
    with TestClient(app) as served:
        monkeypatch.setattr(kintsugi.client, "Client", lambda _url: Client("http://testserver", transport=served._transport))
        exec(compile(example, "docs/jobs.md", "exec"), {})
        job = served.get("/v1/jobs/gpt2").json()
    assert "s a step" in capsys.readouterr().out
    assert (job["summary"]["generation"], job["summary"]["applied_generation"]) == (1, 1)
