"""Invariants of profiles; units that do not fit are refused by name."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kintsugi.core import codec
from kintsugi.core.profile import Device, LayerMeasurement, LinkCost, Network, Profile, Recovery
from tests.builders import layer, uniform_profile
from tests.core import samples
from tests.core.refusals import refuses

FREE = LinkCost(alpha_seconds=0, beta_seconds_per_byte=0)
TIMES = ["forward_seconds", "backward_input_seconds", "backward_weight_seconds", "optimizer_seconds", "accumulation_seconds"]
SIZES = ["parameter_bytes", "gradient_bytes", "optimizer_bytes", "activation_bytes", "output_bytes"]
PARTS = ["deferred_bytes", "input_temporary_bytes", "weight_temporary_bytes", "first_weight_temporary_bytes"]


@pytest.mark.parametrize("field", TIMES + SIZES + PARTS)
@pytest.mark.parametrize("value", [-1, -1e-9, float("nan"), float("inf"), 10**400])
def test_layers_refuse_what_is_negative_or_not_finite(field, value):
    with refuses(field, fragment="finite number of at least 0"):
        layer("a", **{field: value})


@pytest.mark.parametrize("field", TIMES)
def test_layers_refuse_microseconds(field):
    with refuses(field, 9644.5, "times are in seconds"):
        layer("a", **{field: 9644.5})


def test_layers_refuse_to_share_more_than_they_have():
    assert layer("a", parameter_bytes=4, tied_bytes=4).tied_bytes == 4
    with refuses("tied_bytes", 5, "more than the layer's parameter_bytes"):
        layer("a", parameter_bytes=4, tied_bytes=5)


@pytest.mark.parametrize(("optimizer_seconds", "seconds"), [(0.75, 0.5), (0.125, 0.0)])
def test_an_update_takes_what_a_steps_first_microbatch_does_not_save(optimizer_seconds, seconds):
    assert layer("a", optimizer_seconds=optimizer_seconds, accumulation_seconds=0.25).update_seconds == seconds


def test_backward_is_input_and_weight_part():
    assert layer("a", backward_input_seconds=0.25, backward_weight_seconds=0.5).backward_seconds == 0.75


@pytest.mark.parametrize("name", ["", "x" * 201, "line\nbreak", "nul\0"])
def test_names_are_printable_and_short(name):
    with refuses("name"):
        layer(name)


def test_device_refuses_gigabytes_and_reserving_everything():
    with refuses("memory_bytes", 80, "number of gigabytes"):
        Device(name="d", memory_bytes=80)
    with refuses("name", ""):
        Device(name="", memory_bytes=10**9)
    with refuses("reserved_bytes", -1):
        Device(name="d", memory_bytes=10**9, reserved_bytes=-1)
    with refuses("reserved_bytes", 80_000_000_000, "below memory_bytes"):
        Device(name="d", memory_bytes=80_000_000_000, reserved_bytes=80_000_000_000)
    assert Device(name="d", memory_bytes=10**9, reserved_bytes=10**8).usable_bytes == 9 * 10**8


def test_links_refuse_bandwidth_and_microseconds():
    with refuses("beta_seconds_per_byte", 25e9, "inverse of the bandwidth"):
        LinkCost(alpha_seconds=0, beta_seconds_per_byte=25e9)
    with refuses("alpha_seconds", 11.8, "times are in seconds"):
        LinkCost(alpha_seconds=11.8, beta_seconds_per_byte=0)
    assert LinkCost(alpha_seconds=1.0, beta_seconds_per_byte=0.001).transfer_seconds(500) == 1.5


@pytest.mark.parametrize("field", ["host_ingress_bytes_per_second", "host_egress_bytes_per_second"])
@pytest.mark.parametrize("value", [0, -1.0, 25])
def test_host_limits_refuse_gigabytes_per_second(field, value):
    with refuses(field, value):
        Network(intra_host=FREE, inter_host=FREE, **{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("detect_seconds", -1),
        ("regroup_seconds", 90_000_000),
        ("restart_seconds", float("nan")),
        ("checkpoint_interval_seconds", 0),
        ("checkpoint_read_bytes_per_second", 1.5),
    ],
)
def test_recovery_refuses(field, value):
    with refuses(field):
        Recovery(**{"regroup_seconds": 1.0, "restart_seconds": 1.0, field: value})


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"schema_version": 2}, "schema_version"),
        ({"name": ""}, "name"),
        ({"microbatch_size": 0}, "microbatch_size"),
        ({"tensor_parallel_degree": 0}, "tensor_parallel_degree"),
        ({"tensor_parallel_degree": 2**11 + 1}, "tensor_parallel_degree"),
        ({"optimizer_copies": 0}, "optimizer_copies"),
        ({"layers": (layer("a"), layer("b"), layer("a"))}, "layers[2]"),
        ({"layers": (layer("a"), layer("b", tied_to="c"))}, "layers[1].tied_to"),
        ({"layers": (layer("a", tied_to="a"),)}, "layers[0].tied_to"),
        ({"layers": (layer("a"), layer("b", tied_to="a"), layer("c", tied_to="b"))}, "layers[2].tied_to"),
    ],
)
def test_profile_refuses(changes, field):
    with refuses(field):
        replace(uniform_profile(2), **changes)


def test_missing_layers_and_unknown_fields_are_named():
    document = codec.encode(uniform_profile(2))
    with refuses("layers", [], "at least one"):
        codec.decode(Profile, document | {"layers": []})
    with refuses("layers", None, "is missing from Profile"):
        codec.decode(Profile, {name: value for name, value in document.items() if name != "layers"})
    with refuses("layers[1].forward_ms", 12, "known fields: name, forward_seconds"):
        document["layers"][1]["forward_ms"] = 12
        codec.decode(Profile, document)


def test_defaults_of_the_contract():
    document = codec.encode(uniform_profile(1))
    for name in ("tensor_parallel_degree", "optimizer_sharding"):
        del document[name]
    for name in ("optimizer_seconds", "accumulation_seconds", "tied_to"):
        del document["layers"][0][name]
    for name in ("detect_seconds", "checkpoint_interval_seconds", "checkpoint_read_bytes_per_second"):
        del document["recovery"][name]
    for name in ("host_ingress_bytes_per_second", "host_egress_bytes_per_second"):
        del document["network"][name]
    profile = codec.decode(Profile, document)
    assert (profile.tensor_parallel_degree, profile.optimizer_sharding) == (1, "none")
    assert (profile.layers[0].update_seconds, profile.layers[0].tied_to) == (0.0, None)
    assert (profile.recovery.detect_seconds, profile.recovery.checkpoint_interval_seconds) == (0.0, None)
    assert profile.network.host_ingress_bytes_per_second is None


def test_tie_groups_join_an_owner_and_those_tied_to_it():
    layers = (layer("a"), layer("b"), layer("c", tied_to="a"), layer("d"), layer("e", tied_to="a"))
    assert replace(uniform_profile(1), layers=layers).tie_groups == ((0, 2, 4), (1,), (3,))


@given(samples.PROFILES, st.data())
def test_every_layer_is_in_exactly_one_tie_group(profile, data):
    owner = profile.layers[data.draw(st.integers(0, profile.num_layers - 1))]
    layers = tuple(
        entry if entry is owner or data.draw(st.booleans()) else replace(entry, tied_to=owner.name) for entry in profile.layers
    )
    groups = replace(profile, layers=layers).tie_groups
    assert sorted(index for group in groups for index in group) == list(range(profile.num_layers))


def measurement(**changes):
    """Of two layers."""
    known = {"device": "chip", "torch_version": "2", "precision": "float32", "num_samples": 3, "spread_ratios": (0.1, 0.0)}
    return LayerMeasurement(**known | changes)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"num_samples": 0}, "num_samples"),
        ({"spread_ratios": (0.1, -0.1)}, "spread_ratios[1]"),
        ({"spread_ratios": (math.inf, 0.1)}, "spread_ratios[0]"),
    ],
)
def test_measurements_refuse(changes, field):
    with refuses(field):
        measurement(**changes)


def test_a_measurement_has_a_spread_for_every_layer():
    profile = uniform_profile(2)
    provenance = replace(profile.provenance, measurement=measurement())
    assert replace(profile, provenance=provenance).provenance.measurement.driver is None
    with refuses("provenance.measurement.spread_ratios", 1, "for each of the 2 layers"):
        replace(profile, provenance=replace(provenance, measurement=measurement(spread_ratios=(0.1,))))


@pytest.mark.parametrize("seconds", [0.0, -0.0, 5e-324])
def test_a_model_takes_time(seconds):
    nothing = dict.fromkeys(("forward_seconds", "backward_input_seconds", "backward_weight_seconds"), seconds)
    with refuses("layers", 0.0, "take no time at all"):
        uniform_profile(3, layer_changes=nothing)
    assert uniform_profile(3, layer_changes=nothing | {"backward_weight_seconds": 1e-9}).num_layers == 3


@pytest.mark.parametrize("field", ["activation_bytes", "parameter_bytes"])
def test_layers_of_a_petabyte_are_not_credible(field):
    with refuses(f"layers[0].{field}", 2**50, "not credible (over 1.13e+15)"):
        uniform_profile(2, layer_changes={field: 2**50})
    assert uniform_profile(2, layer_changes={field: 2**49}).num_layers == 2
    with refuses(f"layers[1].{field}", 2**50):
        replace(uniform_profile(1), layers=(layer("a", **{field: 1}), layer("b", **{field: 2**50}), layer("c")))
