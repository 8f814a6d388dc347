"""Layer profiles in the form of Oobleck's ModelProfiler: `layer_index,layer_name,forward,backward,mem_required`.

Times are milliseconds of one micro-batch, memory is bytes (what activations, gradients and optimizer state of the layer take
together). The file knows neither device nor network, nor what of the memory is kept per micro-batch, so these are asked for.

What is taken from what: `activation_bytes` is the asked share of `mem_required`; the rest is divided as mixed-precision Adam
divides it over a parameter's 16 bytes, 2 of weight, 2 of gradient, 12 of optimizer state (ZeRO, section 3.1). The backward
pass is half input and half weight part, as their matrix products are equally large. Optimizer updates take no time, for the
file has none.
"""

import csv
import io
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kintsugi.core import checks
from kintsugi.core.errors import InvalidInputError
from kintsugi.core.profile import LayerProfile, Profile, Provenance, ProvenanceKind

COLUMNS = ("layer_index", "layer_name", "forward", "backward", "mem_required")
SECONDS_PER_MILLISECOND = 1e-3
PARAMETER_SHARE, GRADIENT_SHARE = 2 / 16, 2 / 16


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCsvOptions:
    """What such a file does not say."""

    activation_ratio: float
    """Share of `mem_required` that is kept per micro-batch in flight (0..1)."""
    output_bytes: int
    """Of one micro-batch, from each layer to the next."""
    microbatch_size: int = 1

    def __post_init__(self) -> None:
        checks.positive("microbatch_size", self.microbatch_size)
        checks.non_negative("output_bytes", self.output_bytes)
        if not 0.0 <= self.activation_ratio <= 1.0:
            raise InvalidInputError("must be from 0 to 1", field="activation_ratio", value=self.activation_ratio)


def profile_from(text: str, *, name: str, like: Profile, options: LayerCsvOptions) -> Profile:
    """The profile that the file describes, on the device, network and recovery times of `like`.

    Args:
        text: of the file, its header included.
        name: of the profile.
        like: says everything but the layers.
        options: what the file does not say about the layers.

    Raises:
        InvalidInputError: with the row and the column.
    """
    layers = tuple(_layer(row, index, options) for index, row in enumerate(_rows(text)))
    checks.distinct([layer.name for layer in layers], lambda index: f"[{index}].layer_name")
    detail = "Oobleck's layer profile; memory split by mixed-precision Adam, backward pass in halves, updates left out"
    return replace(
        like,
        name=name,
        microbatch_size=options.microbatch_size,
        provenance=Provenance(kind=ProvenanceKind.MEASURED, detail=detail),
        layers=layers,
    )


def _rows(text: str) -> list[dict[str | None, Any]]:
    """Cells by column; those beyond the header's last column are a list under None."""
    reader = csv.DictReader(io.StringIO(text))
    try:
        rows = list(reader)
    except csv.Error as error:
        raise InvalidInputError(f"is no CSV: {error}, after line {reader.line_num}", field="file") from error
    if missing := [column for column in COLUMNS if column not in (reader.fieldnames or ())]:
        raise InvalidInputError(f"has no column {missing[0]}; needed are {', '.join(COLUMNS)}", field="file")
    if twice := [column for column, count in Counter(reader.fieldnames or ()).items() if count > 1 and column in COLUMNS]:
        raise InvalidInputError(f"has two columns {twice[0]}; name the one that is meant so, and the other otherwise", field="file")
    if not rows:
        raise InvalidInputError("has no layers: there is nothing below its header", field="file")
    return rows


def _layer(row: Mapping[str | None, Any], index: int, options: LayerCsvOptions) -> LayerProfile:
    if any(beyond := row.get(None, ())):
        message = "has cells beyond the header's last column; decimals take a point, and a name with a comma quotes"
        raise InvalidInputError(message, field=f"[{index}]", value=",".join(beyond)[:200])
    number = _number(row, "layer_index", index)
    if number != index:
        raise InvalidInputError(f"must be {index}: layers follow each other from 0", field=f"[{index}].layer_index", value=number)
    memory = round(_number(row, "mem_required", index))
    checks.non_negative(f"[{index}].mem_required", memory)
    activation = round(memory * options.activation_ratio)
    state = memory - activation
    parameter, gradient = round(state * PARAMETER_SHARE), round(state * GRADIENT_SHARE)
    name = row["layer_name"] or f"layer{index}"
    checks.name(f"[{index}].layer_name", name)
    backward = _seconds(row, "backward", index)
    return LayerProfile(
        name=name,
        forward_seconds=_seconds(row, "forward", index),
        backward_input_seconds=backward / 2,
        backward_weight_seconds=backward / 2,
        parameter_bytes=parameter,
        gradient_bytes=gradient,
        optimizer_bytes=state - parameter - gradient,
        activation_bytes=activation,
        output_bytes=options.output_bytes,
    )


def _seconds(row: Mapping[str | None, Any], column: str, index: int) -> float:
    """A cell of milliseconds as seconds."""
    milliseconds = _number(row, column, index)
    if milliseconds * SECONDS_PER_MILLISECOND > checks.LONGEST_SECONDS:
        most = checks.LONGEST_SECONDS / SECONDS_PER_MILLISECOND
        message = f"{milliseconds:g} ms is not credible (over {most:g} ms); times are in milliseconds, not in micro- or nanoseconds"
        raise InvalidInputError(message, field=f"[{index}].{column}", value=milliseconds)
    return milliseconds * SECONDS_PER_MILLISECOND


def _number(row: Mapping[str | None, Any], column: str, index: int) -> float:
    """A cell as a number of zero or more."""
    try:
        value = float(row[column])
    except (TypeError, ValueError):
        raise InvalidInputError("is no number", field=f"[{index}].{column}", value=row[column]) from None
    checks.seconds(f"[{index}].{column}", value)
    return value
