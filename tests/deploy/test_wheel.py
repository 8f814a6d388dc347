"""The wheel by itself, without torch: installed into an environment of its own it serves, and drains when it is told to stop."""

import subprocess
import sys
import sysconfig
import threading
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest
from starlette.testclient import TestClient

from api.app import create_app
from api.settings import Settings
from tests.api.story import new_job
from tests.processes import service

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.processes


def run(*command):
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=True).stdout


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """An interpreter with the wheel and what it depends on, where `import torch` fails; the checkout is out of its sight."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run(*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), ".")
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv" / "bin" / "python"
    run(*pip, "--python", str(python), "install", "--quiet", "--no-deps", "--no-index", str(wheel))
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder / "venv")}))
    (packages / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    (packages / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
    return python


def test_the_packages_are_those_of_the_wheel(python, tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    code = "import api, kintsugi, planner; print(api.__file__, kintsugi.__file__, planner.__file__)"
    where = subprocess.run([python, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=240.0, check=True).stdout
    assert all(str(python.parent.parent) in place for place in where.split())


def test_it_serves_and_drains(python, tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setenv("KINTSUGI_PLANS_AHEAD", "false")  # what it is asked here needs no planning, and no loops compiled for it
    database = tmp_path / "kintsugi.sqlite3"
    with TestClient(create_app(Settings(database_url=f"sqlite:///{database}", plans_ahead=False))) as client:
        assert client.post("/v1/jobs", json=new_job()).status_code == 201
    monkeypatch.chdir(tmp_path)
    with service(database, python=str(python)) as running, ThreadPoolExecutor(1) as threads:
        assert httpx2.get(f"{running.url}/readyz", timeout=240.0).json() == {"status": "ok"}
        assert httpx2.get(f"{running.url}/v1/openapi.json", timeout=240.0).json()["info"]["title"] == "Kintsugi"
        waiting = threads.submit(
            httpx2.get, f"{running.url}/v1/jobs/llama/plan", params={"after_generation": 0, "wait_seconds": 50}, timeout=240.0
        )
        while "kintsugi_waiting_clients 1.0" not in httpx2.get(f"{running.url}/metrics", timeout=240.0).text:
            threading.Event().wait(0.01)
        assert running.terminate() == 0
        assert waiting.result(240.0).status_code == 204
