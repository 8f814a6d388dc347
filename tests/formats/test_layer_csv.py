"""Milliseconds become seconds, memory is divided without losing a byte, and errors name row and column."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kintsugi.core.errors import InvalidInputError
from kintsugi.formats.layer_csv import LayerCsvOptions, profile_from
from tests.builders import uniform_profile

HEADER = "layer_index,layer_name,forward,backward,mem_required\n"
LIKE = uniform_profile(2)
OPTIONS = LayerCsvOptions(activation_ratio=0.25, output_bytes=1000, microbatch_size=4)


def read(*rows, options=OPTIONS, header=HEADER):
    return profile_from(header + "\n".join(rows), name="imported", like=LIKE, options=options)


def test_times_are_milliseconds_and_the_rest_is_the_other_profiles():
    profile = read("0,emb,1.5,3.0,1600", "1,h.0,2,4,3200")
    assert [layer.name for layer in profile.layers] == ["emb", "h.0"]
    assert profile.layers[0].forward_seconds == pytest.approx(0.0015)
    assert profile.layers[0].backward_seconds == pytest.approx(0.003)
    assert profile.layers[1].output_bytes == 1000
    assert profile.microbatch_size == 4
    assert (profile.device, profile.network, profile.recovery) == (LIKE.device, LIKE.network, LIKE.recovery)


@given(st.integers(0, 10**12), st.floats(0, 1))
def test_memory_is_divided_whole(memory, ratio):
    (layer,) = read(f"0,h,1,2,{memory}", options=LayerCsvOptions(activation_ratio=ratio, output_bytes=0)).layers
    assert layer.activation_bytes + layer.parameter_bytes + layer.gradient_bytes + layer.optimizer_bytes == memory
    assert layer.parameter_bytes == layer.gradient_bytes <= layer.optimizer_bytes + 1


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ("0,h,fast,2,3", "[0].forward"),
        ("0,h,1,-2,3", "[0].backward"),
        ("0,h,1,2,", "[0].mem_required"),
        ("0,h,1,2,nan", "[0].mem_required"),
        ("0,h,1,2,1e30", "[0].mem_required"),
        ("3,h,1,2,3", "[0].layer_index"),
        ("0,h\0,1,2,3", "[0].layer_name"),
        ("0,h,4000000,2,3", "[0].forward"),
        ("0,h,1,4000000,3", "[0].backward"),
        ("0,h,1,2,3,4", "[0]"),
    ],
)
def test_errors_name_row_and_column(row, field):
    with pytest.raises(InvalidInputError) as refused:
        read(row)
    assert refused.value.field == field


def test_a_name_that_stands_twice_is_told_by_its_row():
    with pytest.raises(InvalidInputError) as refused:
        read("0,h,1,2,3", "1,h,1,2,3")
    assert refused.value.field == "[1].layer_name"


def test_a_time_that_is_not_credible_is_told_in_the_columns_own_unit():
    with pytest.raises(InvalidInputError, match=r"4e\+06 ms is not credible \(over 3.6e\+06 ms\); .* in milliseconds, not"):
        read("0,h,4000000,2,3")


def test_empty_cells_beyond_the_last_column_are_none():
    assert read("0,h,1,2,3,,").num_layers == 1


def test_a_file_that_is_no_csv_is_refused_with_its_line():
    with pytest.raises(InvalidInputError, match="after line 2") as refused:
        read("0,h,1,2,3", f"1,{'h' * 200_000},1,2,3")
    assert refused.value.field == "file"
    with pytest.raises(InvalidInputError, match="is no CSV"):
        read(header="h" * 200_000)


def test_a_column_that_stands_twice_is_refused():
    with pytest.raises(InvalidInputError, match="two columns forward") as refused:
        read("0,h,1,2,3,7", header="layer_index,layer_name,forward,backward,mem_required,forward\n")
    assert refused.value.field == "file"


def test_a_file_of_another_form_is_refused():
    with pytest.raises(InvalidInputError, match="no column mem_required"):
        read("0,h,1,2", header="layer_index,layer_name,forward,backward\n")
    with pytest.raises(InvalidInputError, match="no column layer_index"):
        read(header="")
    with pytest.raises(InvalidInputError, match="nothing below its header") as refused:
        read()
    assert refused.value.field == "file"


def test_the_share_of_activations_is_a_share():
    with pytest.raises(InvalidInputError, match="from 0 to 1"):
        LayerCsvOptions(activation_ratio=1.5, output_bytes=0)


def test_the_example_is_such_a_file():
    text = (Path(__file__).parents[2] / "examples" / "layers.csv").read_text()
    assert profile_from(text, name="example", like=LIKE, options=OPTIONS).num_layers == 6
