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
    reader = csv.DictReader(io.StringIO(text))
    if missing := [column for column in COLUMNS if column not in (reader.fieldnames or ())]:
        raise InvalidInputError(f"has no column {missing[0]}; needed are {', '.join(COLUMNS)}", field="file")
    layers = tuple(_layer(row, index, options) for index, row in enumerate(reader))
    detail = "Oobleck's layer profile; memory split by mixed-precision Adam, backward pass in halves, updates left out"
    return replace(
        like,
        name=name,
        microbatch_size=options.microbatch_size,
        provenance=Provenance(kind=ProvenanceKind.MEASURED, detail=detail),
        layers=layers,
    )


def _layer(row: Mapping[str, Any], index: int, options: LayerCsvOptions) -> LayerProfile:
    number = _number(row, "layer_index", index)
    if number != index:
        raise InvalidInputError(f"must be {index}: layers follow each other from 0", field=f"[{index}].layer_index", value=number)
    memory = _number(row, "mem_required", index)
    activation = round(memory * options.activation_ratio)
    state = round(memory) - activation
    parameter, gradient = round(state * PARAMETER_SHARE), round(state * GRADIENT_SHARE)
    backward = _number(row, "backward", index) * SECONDS_PER_MILLISECOND
    return LayerProfile(
        name=row["layer_name"] or f"layer{index}",
        forward_seconds=_number(row, "forward", index) * SECONDS_PER_MILLISECOND,
        backward_input_seconds=backward / 2,
        backward_weight_seconds=backward / 2,
        parameter_bytes=parameter,
        gradient_bytes=gradient,
        optimizer_bytes=state - parameter - gradient,
        activation_bytes=activation,
        output_bytes=options.output_bytes,
    )


def _number(row: Mapping[str, Any], column: str, index: int) -> float:
    """A cell as a number of zero or more."""
    try:
        value = float(row[column])
    except (TypeError, ValueError):
        raise InvalidInputError("is no number", field=f"[{index}].{column}", value=row[column]) from None
    checks.seconds(f"[{index}].{column}", value)
    return value
