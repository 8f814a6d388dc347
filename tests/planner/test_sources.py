"""The name of a planner is that of its sources."""

from planner.sources import LONGEST_NAME, PACKAGES, planner_name, sources_digest


def test_the_name_begins_with_the_version_and_fits_the_database(monkeypatch):
    planner_name.cache_clear()
    monkeypatch.setattr("planner.sources.__version__", "0.1.0.dev12+g0123456.d20260131")
    name = planner_name()
    planner_name.cache_clear()
    assert name.startswith("0.1.0.dev12+g01234")
    assert len(name) == LONGEST_NAME


def test_every_source_counts_and_its_place(tmp_path):
    for package in PACKAGES:
        (tmp_path / package).mkdir(parents=True)
    seen = {sources_digest(tmp_path)}
    source = tmp_path / "planner" / "a.py"
    source.write_text("1")
    seen.add(sources_digest(tmp_path))
    source.write_text("2")
    seen.add(sources_digest(tmp_path))
    (tmp_path / "notes.txt").write_text("no source")
    again = sources_digest(tmp_path)
    source.rename(tmp_path / "restorer" / "a.py")
    seen.add(sources_digest(tmp_path))
    assert len(seen) == 4
    assert again in seen
