"""Pictures are written in every format, the same every time."""

import builtins

import pytest

from kintsugi.core.errors import InvalidInputError
from kintsugi.reporting import pictures
from tests.full_disks import without_room_for


def draw(folder):
    plot = pytest.importorskip("matplotlib") and pictures.pyplot()
    figure, axes = pictures.new_axes(plot, "x", "y")
    axes.plot([1, 2], [3, 4])
    written = pictures.save(figure, folder / "line")
    plot.close(figure)
    return written


def test_a_figure_is_written_in_every_format(tmp_path):
    assert [path.name for path in draw(tmp_path)] == ["line.png", "line.svg"]
    assert (tmp_path / "line.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_data_give_the_same_file(tmp_path):
    texts = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        texts.append(draw(tmp_path / name)[1].read_bytes())
    assert texts[0] == texts[1]


def test_a_name_with_a_point_keeps_it(tmp_path):
    plot = pytest.importorskip("matplotlib") and pictures.pyplot()
    figure, _ = pictures.new_axes(plot, "x", "y")
    assert [path.name for path in pictures.save(figure, tmp_path / "v1.5")] == ["v1.5.png", "v1.5.svg"]
    plot.close(figure)


def test_without_room_an_earlier_figure_stays(tmp_path):
    _, picture = draw(tmp_path)
    before = picture.read_bytes()
    without_room_for(picture)
    with pytest.raises(OSError, match=r"No space left on device.*line\.svg"):
        draw(tmp_path)
    assert picture.read_bytes() == before


def test_who_has_no_matplotlib_is_told_what_to_install(monkeypatch):
    real = builtins.__import__

    def fake(name, *rest, **named):
        if name == "matplotlib":
            raise ModuleNotFoundError(name)
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", fake)
    with pytest.raises(InvalidInputError, match=r"kintsugi\[plot\]"):
        pictures.pyplot()
