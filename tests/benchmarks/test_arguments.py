"""What a benchmark's command line refuses."""

import argparse

import pytest

from benchmarks.arguments import above_zero, at_least, folder, some_of


def parsed(kind, text: str) -> object:
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--it", type=kind)
    return parser.parse_args([f"--it={text}"]).it


@pytest.mark.parametrize(
    ("kind", "text", "found"),
    [(at_least(0), "0", 0), (at_least(1), "7", 7), (above_zero, "0.25", 0.25), (some_of(("a", "b")), "b,a", "b,a")],
)
def test_what_can_be_measured_is_taken(kind, text, found):
    assert parsed(kind, text) == found


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [
        (at_least(1), "0", "must be at least 1, not 0"),
        (at_least(0), "-1", "must be at least 0, not -1"),
        (at_least(1), "few", "invalid whole value"),
        (above_zero, "0", "must be above 0 and finite, not 0"),
        (above_zero, "nan", "must be above 0 and finite, not nan"),
        (above_zero, "inf", "must be above 0 and finite, not inf"),
        (some_of(("crash", "cut")), "cut,foo", "knows crash, cut, not 'foo'"),
        (some_of(("crash", "cut")), "", "knows crash, cut, not ''"),
    ],
)
def test_the_reason_is_told(kind, text, why):
    with pytest.raises(argparse.ArgumentError, match=why):
        parsed(kind, text)


def test_a_folder_for_results_is_made_before_anything_is_measured(tmp_path):
    assert parsed(folder, str(tmp_path / "a" / "b")) == tmp_path / "a" / "b"
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_a_folder_that_takes_no_results_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(argparse.ArgumentError, match="no folder that can be made and written to"):
        parsed(folder, str(tmp_path / "file"))
    with pytest.raises(argparse.ArgumentError, match="no folder that can be made and written to"):
        parsed(folder, "/proc/none")
