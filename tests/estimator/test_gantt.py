"""The picture is well-formed, complete, and true to its scale."""

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.gantt import BAR, LEFT, LEGEND, NARROWEST_NUMBERED, RIGHT, WIDTH, to_svg
from estimator.timeline import Bar, BarKind, Panel, Row

SVG = "{http://www.w3.org/2000/svg}"
COLOURS = {kind.value.removeprefix("rerouted-") for kind, _ in LEGEND}


def bar(start, end, *, kind=BarKind.FORWARD, worker="w00", microbatch=0):
    return Bar(worker=worker, kind=kind, microbatch=microbatch, start_seconds=start, end_seconds=end)


def picture(*bars, rows=("w00", "w01"), lost=(), title="before"):
    lines = tuple(Row(worker=row, group="pipeline 0", label=row, is_lost=row in lost) for row in rows)
    return to_svg([Panel(title=title, rows=lines, bars=bars)], description="a step")


def boxes(svg, colour):
    """Rectangles of a colour but the legend's, which comes last: (x, y, width)."""
    root = ElementTree.fromstring(svg)
    found = [each for each in root.iter(f"{SVG}rect") if each.get("class") == colour]
    return [tuple(float(each.get(name)) for name in ("x", "y", "width")) for each in found[:-1]]


def texts(svg):
    return [each.text for each in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_bars_lie_where_their_times_say():
    svg = picture(bar(0, 1), bar(1, 4, worker="w01"))
    (first,), second = boxes(svg, "forward")[:1], boxes(svg, "forward")[1]
    span = WIDTH - LEFT - RIGHT
    assert first[0] == pytest.approx(LEFT + 0.5, abs=0.1)
    assert first[2] == pytest.approx(span / 4 - 1, abs=0.1)
    assert second[0] == pytest.approx(LEFT + span / 4 + 0.5, abs=0.1)
    assert second[1] > first[1] + BAR


def test_panels_share_one_scale():
    rows = (Row(worker="w00", group="", label="w00"),)
    panels = [Panel(title=title, rows=rows, bars=(bar(0, end),)) for title, end in (("short", 1.0), ("long", 2.0))]
    short, long = boxes(to_svg(panels, description="two"), "forward")
    assert (long[2] + 1) / (short[2] + 1) == pytest.approx(2, rel=1e-3)


def test_wide_bars_carry_their_number_and_narrow_ones_do_not():
    span = WIDTH - LEFT - RIGHT
    narrow = 0.9 * NARROWEST_NUMBERED / span
    svg = picture(bar(0, narrow, microbatch=77), bar(0.5, 1, microbatch=88))
    assert "88" in texts(svg)
    assert "77" not in texts(svg)


def test_rerouted_work_is_striped():
    assert "url(#stripes)" not in picture(bar(0, 1))
    assert picture(bar(0, 1, kind=BarKind.REROUTED_BACKWARD)).count("url(#stripes)") == 2, "the bar and the legend"


def test_lost_worker_is_marked_and_named():
    svg = picture(bar(0, 1), lost=["w01"])
    assert any("lost" in text for text in texts(svg))
    assert ElementTree.fromstring(svg).findall(f".//{SVG}rect[@class='gone']")
    assert not ElementTree.fromstring(picture(bar(0, 1))).findall(f".//{SVG}rect[@class='gone']")


def test_legend_explains_every_kind_that_is_shown():
    assert [kind for kind, _ in LEGEND] == list(BarKind)
    shown = texts(picture(*(bar(n, n + 1, kind=kind) for n, kind in enumerate(BarKind))))
    assert all(words in shown for _, words in LEGEND)
    assert [words for _, words in LEGEND if words in texts(picture(bar(0, 1)))] == ["forward"]


def test_legend_stays_within_the_picture():
    svg = picture(*(bar(n, n + 1, kind=kind) for n, kind in enumerate(BarKind)))
    words = {words for _, words in LEGEND}
    entries = [each for each in ElementTree.fromstring(svg).iter(f"{SVG}text") if each.text in words]
    assert all(float(each.get("x")) + 6.1 * len(each.text) <= WIDTH for each in entries)
    height = float(ElementTree.fromstring(svg).get("height"))
    assert all(float(each.get("y")) < height for each in entries)


def test_every_colour_has_a_style_and_both_modes_are_served():
    style = ElementTree.fromstring(picture(bar(0, 1))).find(f"{SVG}style").text
    assert all(re.search(rf"\.{colour} {{ fill: #", style) for colour in COLOURS)
    assert "prefers-color-scheme: dark" in style


def test_stands_alone():
    svg = picture(bar(0, 1))
    assert re.findall(r"https?://[^\"']+", svg) == ["http://www.w3.org/2000/svg"]
    assert ElementTree.fromstring(svg).find(f"{SVG}title").text == "a step"


def test_text_is_escaped():
    assert "a < b & c" in texts(picture(bar(0, 1), title="a < b & c"))


@given(st.floats(1e-6, 1e5))
def test_axis_has_few_round_ticks_within_the_step(end):
    ticks = [text for text in texts(picture(bar(0, end))) if re.fullmatch(r"[\d.e+-]+ s", text)]
    values = [float(text[:-2]) for text in ticks]
    assert 4 <= len(values) <= 10
    assert values[0] == 0
    assert values[-1] <= end * (1 + 1e-3)
    assert values == sorted(values)
