"""`import kintsugi` is light, and says so when a user's folder hides one of its packages."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import kintsugi

ROOT = Path(kintsugi.__file__).parent.parent


def python(code: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=directory, capture_output=True, text=True, timeout=240.0, check=False)


@pytest.mark.parametrize("name", ["api", "estimator", "planner", "restorer"])
@pytest.mark.parametrize("kind", ["package", "module"])
def test_a_shadowed_package_is_told_with_the_way_out(tmp_path, name, kind):
    place = tmp_path / name / "__init__.py" if kind == "package" else tmp_path / f"{name}.py"
    place.parent.mkdir(exist_ok=True)
    place.write_text("")
    result = python("import kintsugi", tmp_path)
    assert result.returncode == 1
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: ")
    assert repr(name) in last
    assert str(place) in last
    assert "Rename" in last


def test_a_folder_without_code_hides_nothing(tmp_path):
    (tmp_path / "planner").mkdir()
    assert python("import kintsugi, planner.replan", tmp_path).returncode == 0


@pytest.mark.parametrize("place", [".", "examples"])
def test_the_projects_own_checkout_is_fine(place):
    assert python("import kintsugi, planner, api", ROOT / place).returncode == 0


def test_the_import_is_light():
    code = "import sys, kintsugi; print(*sys.modules)"
    modules = set(python(code, ROOT).stdout.split())
    assert not modules & {"torch", "numpy", "fastapi", "pydantic", "sqlalchemy", "httpx2", "planner"}


def test_the_version_is_the_projects():
    project = ROOT / "pyproject.toml"
    assert kintsugi.__version__ == tomllib.loads(project.read_text())["project"]["version"]
