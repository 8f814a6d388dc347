"""The picture in the README is the one that today's planner and estimator draw."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_picture_is_what_the_script_draws(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    spec = importlib.util.spec_from_file_location("make_pictures", ROOT / "scripts" / "make_pictures.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    script.main(tmp_path / "schedule.svg")
    drawn, committed = (path.read_text() for path in (tmp_path / "schedule.svg", ROOT / "docs" / "schedule.svg"))
    assert drawn == committed, "run scripts/make_pictures"
