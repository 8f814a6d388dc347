"""What a model costs on a device: times and bytes per layer, per micro-batch, per device of a worker."""

import math
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from kintsugi.core import checks
from kintsugi.core.errors import InvalidInputError

PYDANTIC_CONFIG = {"use_attribute_docstrings": True, "extra": "forbid"}


class ProvenanceKind(StrEnum):
    """Where the numbers of a profile come from."""

    MEASURED = "measured"
    PUBLISHED = "published"
    ANALYTICAL = "analytical"


class OptimizerSharding(StrEnum):
    """How optimizer state is spread over the replicas of a layer."""

    NONE = "none"
    ZERO1 = "zero1"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerMeasurement:
    """What layers were measured with, and how far their samples lie apart."""

    __pydantic_config__ = PYDANTIC_CONFIG

    device: str
    """On which the layers were run."""
    driver: str | None = None
    """Of the device; null for processors."""
    torch_version: str
    precision: str
    """Of parameters and activations, as torch names it."""
    recomputes_activations: bool = False
    """Whether the backward times contain a second forward pass."""
    num_samples: int
    """Of which each time is the median, at least."""
    spread_ratios: tuple[float, ...]
    """Interquartile ranges of each layer's forward and backward pass together, over their medians. Shape [layers]."""

    def __post_init__(self) -> None:
        checks.positive("num_samples", self.num_samples)
        for index, ratio in enumerate(self.spread_ratios):
            if not 0.0 <= ratio < math.inf:
                raise InvalidInputError("must be a number from 0 on", field=f"spread_ratios[{index}]", value=ratio)


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where the numbers come from: measured, published or analytical, and how."""

    __pydantic_config__ = PYDANTIC_CONFIG

    kind: ProvenanceKind
    detail: str = ""
    """Machine, versions and command of a measurement; source of a publication; formula of an analysis."""
    measurement: LayerMeasurement | None = None
    """Null where nothing was measured, or where it is not known with what."""


_SECONDS = ("forward_seconds", "backward_input_seconds", "backward_weight_seconds", "optimizer_seconds", "accumulation_seconds")
_BYTES = (
    "parameter_bytes",
    "gradient_bytes",
    "optimizer_bytes",
    "activation_bytes",
    "output_bytes",
    "entry_bytes",
    "temporary_bytes",
    "first_temporary_bytes",
    "deferred_bytes",
    "input_temporary_bytes",
    "weight_temporary_bytes",
    "first_weight_temporary_bytes",
    "optimizer_temporary_bytes",
    "tied_bytes",
)

SHORTEST_SECONDS = 1e-300
"""Of all layers together; less is none: everything is divided by it, and would be infinite."""

MOST_BYTES = 2**50
"""Of one kind, of all layers together; with as many micro-batches in flight as there may be, 64 bits count them still."""

MOST_DEVICES = 2**11
"""Of one worker; 64 bits count the bytes of all of them still."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerProfile:
    """One layer: times per micro-batch, bytes per device."""

    __pydantic_config__ = PYDANTIC_CONFIG

    name: str
    forward_seconds: float
    """Forward pass of one micro-batch."""
    backward_input_seconds: float
    """The part of the backward pass that yields the gradient of the input."""
    backward_weight_seconds: float
    """The part of the backward pass that yields the gradients of the weights."""
    optimizer_seconds: float = 0.0
    """Norm of the gradients, clipping and the optimizer's update, once per step; a first micro-batch is slower by some of it."""
    accumulation_seconds: float = 0.0
    """Of `backward_weight_seconds`, what adding to the gradients of earlier micro-batches takes; a step's first has none."""
    parameter_bytes: int
    gradient_bytes: int
    """What data parallelism reduces. A tied layer counts only what it does not share."""
    optimizer_bytes: int
    activation_bytes: int
    """Kept from the forward to the backward pass, per micro-batch in flight."""
    output_bytes: int
    """Activation sent to the next stage; its gradient comes back."""
    entry_bytes: int = 0
    """What a stage that begins with this layer keeps of its input beyond `activation_bytes`, per micro-batch in flight."""
    temporary_bytes: int = 0
    """The most that a pass of one micro-batch takes at once beyond the activations it keeps or was kept for it."""
    first_temporary_bytes: int = 0
    """The same of a step's first pass, with the gradients that are made in it, for none are there before; 0 if not known."""
    deferred_bytes: int = 0
    """Kept from the input part of a split backward pass to its weight part, per micro-batch; 0 means as much as before them."""
    input_temporary_bytes: int = 0
    """The most that an input part takes at once beyond `activation_bytes`, with what it keeps; 0 if not known."""
    weight_temporary_bytes: int = 0
    """The most that a weight part takes at once beyond `deferred_bytes`; 0 if not known, or where no pass can be split."""
    first_weight_temporary_bytes: int = 0
    """The same of a step's first weight part, with the gradients that are made in it; 0 if not known."""
    optimizer_temporary_bytes: int = 0
    """The most that the update takes at once beyond parameters, gradients and optimizer state."""
    tied_to: str | None = None
    """The layer whose parameters this one shares."""
    tied_bytes: int = 0
    """Of its parameters, those that it shares: one copy of them, and of their gradients, serves all who share them on a worker."""

    def __post_init__(self) -> None:
        checks.name("name", self.name)
        for field in _SECONDS:
            checks.seconds(field, getattr(self, field), at_most=checks.LONGEST_SECONDS)
        for field in _BYTES:
            checks.non_negative(field, getattr(self, field))
        if self.tied_bytes > self.parameter_bytes:
            raise InvalidInputError("is more than the layer's parameter_bytes", field="tied_bytes", value=self.tied_bytes)

    @property
    def backward_seconds(self) -> float:
        """The whole backward pass: input part and weight part."""
        return self.backward_input_seconds + self.backward_weight_seconds

    @property
    def update_seconds(self) -> float:
        """What a step takes beyond its passes: the update, less what its first micro-batch does not add."""
        return max(self.optimizer_seconds - self.accumulation_seconds, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """The device that one worker (or each of its tensor-parallel devices) computes on."""

    __pydantic_config__ = PYDANTIC_CONFIG

    name: str
    memory_bytes: int
    reserved_bytes: int = 0
    """Not available to the job: the context, the collective library's buffers, fragmentation."""

    def __post_init__(self) -> None:
        checks.name("name", self.name)
        checks.device_memory("memory_bytes", self.memory_bytes)
        checks.non_negative("reserved_bytes", self.reserved_bytes)
        if self.reserved_bytes >= self.memory_bytes:
            raise InvalidInputError(
                "leaves no memory: it must be below memory_bytes", field="reserved_bytes", value=self.reserved_bytes
            )

    @property
    def usable_bytes(self) -> int:
        """Memory that a stage may fill."""
        return self.memory_bytes - self.reserved_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkCost:
    """The alpha-beta model of a link: n bytes take alpha + n * beta seconds."""

    __pydantic_config__ = PYDANTIC_CONFIG

    alpha_seconds: float
    beta_seconds_per_byte: float

    def __post_init__(self) -> None:
        checks.seconds("alpha_seconds", self.alpha_seconds, at_most=checks.LONGEST_LATENCY_SECONDS)
        checks.beta("beta_seconds_per_byte", self.beta_seconds_per_byte)

    def transfer_seconds(self, num_bytes: float) -> float:
        """Time of one message of `num_bytes` bytes, in seconds."""
        return self.alpha_seconds + num_bytes * self.beta_seconds_per_byte


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Links within and between hosts, and what one host can take in or give out at all."""

    __pydantic_config__ = PYDANTIC_CONFIG

    intra_host: LinkCost
    inter_host: LinkCost
    host_ingress_bytes_per_second: float | None = None
    """What all workers of a host together can receive; null means no limit beyond their links."""
    host_egress_bytes_per_second: float | None = None
    """What all workers of a host together can send."""

    def __post_init__(self) -> None:
        for field in ("host_ingress_bytes_per_second", "host_egress_bytes_per_second"):
            if getattr(self, field) is not None:
                checks.rate(field, getattr(self, field))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """What the steps of a recovery take on this cluster."""

    __pydantic_config__ = PYDANTIC_CONFIG

    detect_seconds: float = 0.0
    """From the failure until everybody who must know of it does."""
    regroup_seconds: float
    """Quiesce the survivors and build the process groups of the next generation."""
    restart_seconds: float
    """Start the job's processes from nothing, up to reading the checkpoint."""
    checkpoint_interval_seconds: float | None = None
    """From one checkpoint to the next; null means that there are none."""
    checkpoint_read_bytes_per_second: float | None = None
    """Rate at which the job as a whole reads one copy of its state."""

    def __post_init__(self) -> None:
        for field in ("detect_seconds", "regroup_seconds", "restart_seconds"):
            checks.seconds(field, getattr(self, field), at_most=checks.LONGEST_RECOVERY_SECONDS)
        if self.checkpoint_interval_seconds is not None:
            checks.positive("checkpoint_interval_seconds", self.checkpoint_interval_seconds)
        if self.checkpoint_read_bytes_per_second is not None:
            checks.rate("checkpoint_read_bytes_per_second", self.checkpoint_read_bytes_per_second)


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A model on a device: the input of every estimate (contract: schema_version 1)."""

    __pydantic_config__ = PYDANTIC_CONFIG

    schema_version: int = 1
    name: str
    microbatch_size: int
    """Samples in one micro-batch."""
    tensor_parallel_degree: int = 1
    """Devices per worker."""
    optimizer_sharding: OptimizerSharding = OptimizerSharding.NONE
    optimizer_copies: int = 1
    """Holders that keep each shard of optimizer state under zero1; with two, a lost shard is copied from the second one."""
    provenance: Provenance
    layers: tuple[LayerProfile, ...]
    device: Device
    network: Network
    recovery: Recovery

    def __post_init__(self) -> None:
        if self.schema_version != 1:
            raise InvalidInputError("this version reads schema_version 1", field="schema_version", value=self.schema_version)
        checks.name("name", self.name)
        checks.positive("microbatch_size", self.microbatch_size)
        checks.count("tensor_parallel_degree", self.tensor_parallel_degree)
        if self.tensor_parallel_degree > MOST_DEVICES:
            message = f"must be at most {MOST_DEVICES}: the devices of one worker, not of the job"
            raise InvalidInputError(message, field="tensor_parallel_degree", value=self.tensor_parallel_degree)
        checks.positive("optimizer_copies", self.optimizer_copies)
        checks.not_empty("layers", self.layers)
        checks.unique("layers", [layer.name for layer in self.layers])
        self._check_times()
        self._check_bytes()
        self._check_measurement()
        self._check_ties()

    def _check_times(self) -> None:
        if sum(layer.forward_seconds + layer.backward_seconds for layer in self.layers) < SHORTEST_SECONDS:
            raise InvalidInputError(
                "take no time at all: forward and backward seconds of all layers are 0 or nearly; `kintsugi profile` measures them",
                field="layers",
                value=0.0,
            )

    def _check_bytes(self) -> None:
        for field in _BYTES:
            sizes = [getattr(layer, field) for layer in self.layers]
            if sum(sizes) > MOST_BYTES:
                largest = sizes.index(max(sizes))
                message = f"is the largest; {sum(sizes):.3g} bytes of all layers together are not credible (over {MOST_BYTES:.3g})"
                raise InvalidInputError(message, field=f"layers[{largest}].{field}", value=sizes[largest])

    def _check_measurement(self) -> None:
        measurement = self.provenance.measurement
        if measurement is not None and len(measurement.spread_ratios) != len(self.layers):
            raise InvalidInputError(
                f"must have a ratio for each of the {len(self.layers)} layers",
                field="provenance.measurement.spread_ratios",
                value=len(measurement.spread_ratios),
            )

    def _check_ties(self) -> None:
        owners = {layer.name: layer for layer in self.layers}
        for index, layer in enumerate(self.layers):
            if layer.tied_to is None:
                continue
            owner = owners.get(layer.tied_to)
            if owner is None or owner.tied_to is not None:
                raise InvalidInputError(
                    "must name another layer that owns its parameters itself",
                    field=f"layers[{index}].tied_to",
                    value=layer.tied_to,
                )

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return len(self.layers)

    def optimizer_shards(self, num_holders: int) -> int:
        """Into how many shards a layer's optimizer state is cut: one for each holder under zero1, else a single one."""
        return num_holders if self.optimizer_sharding is OptimizerSharding.ZERO1 else 1

    @cached_property
    def tie_groups(self) -> tuple[tuple[int, ...], ...]:
        """Layer indices that share parameters, one ascending tuple per group; untied layers stand alone. Shape [groups]."""
        index_of = {layer.name: index for index, layer in enumerate(self.layers)}
        groups: dict[int, list[int]] = {}
        for index, layer in enumerate(self.layers):
            groups.setdefault(index_of[layer.tied_to] if layer.tied_to else index, []).append(index)
        return tuple(sorted(map(tuple, groups.values())))
