"""One deterministic layout of all that a joining worker needs: parameters, buffers, optimizer and schedules, as a range of bytes.

Equal replicas have equal bytes, so different neighbours can send different parts of it, and a hash proves that they are equal.
"""

import hashlib
import inspect
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from kintsugi.core.errors import ReconfigurationError
from kintsugi.runtime.optimizer_state import flat, groups_by_parameter, kept, nested, put, require_by_parameter
from kintsugi.runtime.overlay.options import Replicated
from kintsugi.runtime.overlay.ranges import Ranges, united
from kintsugi.runtime.workers.fit import shape_and_type
from restorer.packing import HOST, PackedState, StateEntries

_PIECE_BYTES = 4 * 2**20
_BUFFER, _PARAMETER, _GROUP, _COUNT, _KIND, _REDUCED = "buffer", "parameter", "group", "count", "kind", "reduced"
_CHUNK_BYTES, _SCHEDULED = "chunk_bytes", "scheduled"
_STATE = "optimizer."
"""Begins the keys of a parameter's optimizer state."""
_STEPS, _SCHEDULES, _OPTIMIZER = "steps", "schedules[]", "optimizer[]"
_LEAST_SHARD_BYTES = 256
_LEAST_SHARDS = 1_024
"""Of a state that is not small: however large its vectors, all neighbours can send of it as their links allow."""
_WAY_OUT = "train the same in the same way, or name another job"
_NEED_MEMORY = {"fused", "capturable"}
"""What torch's optimizers refuse to do with tensors without memory."""


class Schedule(Protocol):
    """What steps once per optimizer step and has a state: torch's learning-rate schedulers are some."""

    def step(self) -> None:
        """Go on by one step."""

    def state_dict(self) -> dict[str, Any]:
        """Plain values."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatState:
    """A model and what trains it, in this layout."""

    model: nn.Module
    """Built already."""
    optimizer: torch.optim.Optimizer
    """Over parameters of it."""
    schedules: Sequence[Schedule] = ()
    """That step with it."""
    replicated: Replicated = Replicated.EVERYTHING
    """Which parameters are part of the state."""
    reduced: Sequence[str] = ()
    """Names of the parameters and buffers that a reduction's vector is of, in its order."""
    chunk_bytes: int = 0
    """Of the pieces that it is cut into."""

    def entries(self, steps: int) -> StateEntries:
        """Everything by (owner, key), buffers first; tensors are the live ones. `steps` is how many these have seen.

        Raises:
            InvalidInputError: the optimizer or a schedule keeps what cannot be sent.
        """
        optimizer = self.optimizer
        require_by_parameter(optimizer)
        found: StateEntries = {(name, _BUFFER): buffer for name, buffer in self.model.named_buffers()}
        found |= self._parameters()
        found[_OPTIMIZER, _KIND] = type(optimizer).__name__
        found[_OPTIMIZER, _SCHEDULED] = [type(schedule).__name__ for schedule in self.schedules]
        found[_OPTIMIZER, _REDUCED], found[_OPTIMIZER, _CHUNK_BYTES] = list(self.reduced), self.chunk_bytes
        numbers = {id(one): number for number, group in enumerate(optimizer.param_groups) for one in group["params"]}
        for name, parameter in optimized(self.model, optimizer):
            found[name, _GROUP] = numbers[id(parameter)]
            for key, value in sorted(flat(optimizer.state.get(parameter, {})).items()):
                found[name, _STATE + key] = value
        for index, group in enumerate(optimizer.param_groups):
            settings = {key: value for key, value in group.items() if key != "params"}
            found |= {(_group(index), key): value for key, value in sorted(flat(settings, _group(index)).items())}
        states = {str(index): schedule.state_dict() for index, schedule in enumerate(self.schedules)}
        found |= {(_SCHEDULES, key): value for key, value in flat(states, "schedules").items()}
        found[_STEPS, _COUNT] = steps
        return found

    def replica(self) -> StateEntries:
        """What is equal on all workers: parameters, and tensors that the optimizer keeps of them. The live ones."""
        found = self._parameters()
        for name, parameter in optimized(self.model, self.optimizer):
            state = self.optimizer.state.get(parameter, {})
            found |= {(name, f"{_STATE}{key}"): value for key, value in state.items() if isinstance(value, Tensor)}
        return found

    def load(self, arrived: StateEntries) -> int:
        """Make it equal to what arrived; the number of steps that this has seen.

        Raises:
            ReconfigurationError: it is the state of another model, or of one that is trained in another way.
        """
        own = self.entries(0)
        _require_same_model(own, arrived)
        _require_same_training(own, arrived)
        with torch.no_grad():
            for key, tensor in own.items():
                if key[1] in (_BUFFER, _PARAMETER):
                    tensor.copy_(arrived[key])
        found = _by_owner(arrived)
        self._load_optimizer(found)
        states = nested(found[_SCHEDULES])
        for index, schedule in enumerate(self.schedules):
            schedule.load_state_dict(states[str(index)])
        return int(arrived[_STEPS, _COUNT])

    def _parameters(self) -> StateEntries:
        everything = self.replicated is Replicated.EVERYTHING
        return {(name, _PARAMETER): one for name, one in self.model.named_parameters() if everything or one.requires_grad}

    def _load_optimizer(self, found: Mapping[str, Mapping[str, Any]]) -> None:
        optimizer = self.optimizer
        for index, group in enumerate(optimizer.param_groups):
            group.update({key: put(group.get(key), value) for key, value in nested(found[_group(index)]).items()})
        groups = groups_by_parameter(optimizer.param_groups)
        optimizer.state.clear()  # of an earlier life: where the others keep nothing yet, nothing may stay
        for name, parameter in optimized(self.model, optimizer):
            named = {key.removeprefix(_STATE): value for key, value in found[name].items() if key.startswith(_STATE)}
            if named:
                optimizer.state[parameter] = nested(
                    {key: kept(key, value, parameter, groups[parameter]) for key, value in named.items()}
                )

    def expected_bytes(self) -> int:
        """Of the state once the optimizer has stepped, which it may not have yet.

        Raises:
            InvalidInputError: the optimizer or a schedule keeps what cannot be sent.
        """
        tensors = PackedState(self.entries(0)).num_bytes
        return tensors if self.optimizer.state else tensors + _unborn_bytes(self.optimizer)


def optimized(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters that the optimizer steps, by name, in the model's order."""
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for name, parameter in model.named_parameters():
        if id(parameter) in held:
            yield name, parameter


def buffer_bytes(packed: PackedState) -> int:
    """How many bytes at the beginning are buffers, which the forward pass changes."""
    return sum(_num_bytes(value) for (_, key), value in packed.entries.items() if key == _BUFFER)


def still_ranges(packed: PackedState) -> Ranges:
    """The bytes of parameters that are not trained: nothing changes them."""
    found, at = [], 0
    for (_, key), value in packed.entries.items():
        end = at + _num_bytes(value)
        if _is_still(key, value):
            found.append((at, end))
        at = end
    return united(found)


def still_version(packed: PackedState) -> int:
    """Grows when a parameter that is not trained is changed all the same."""
    return sum(value._version for (_, key), value in packed.entries.items() if _is_still(key, value))


def pieces(num_bytes: int) -> Iterator[tuple[int, int]]:
    """Consecutive ranges of bytes of a size that is copied and hashed at once."""
    for begin in range(0, num_bytes, _PIECE_BYTES):
        yield begin, min(begin + _PIECE_BYTES, num_bytes)


def digest(packed: PackedState) -> str:
    """SHA-256 of the layout and all bytes, in hexadecimal."""
    found = hashlib.sha256(packed.header)
    memory = torch.empty(min(_PIECE_BYTES, packed.num_bytes), dtype=torch.uint8)
    for begin, end in pieces(packed.num_bytes):
        piece = memory[: end - begin]
        packed.read(begin, piece)
        found.update(piece.numpy().data)
    return found.hexdigest()


def atomic_shard_bytes(model: nn.Module, state_bytes: int) -> int:
    """The size of a shard: of the smallest vector, such as biases and norms; matrices consist of rows (section III-A).

    At most so much that a state of `state_bytes` has 1,024 shards, and at least 256 bytes: to cut finer is not worth it.
    """
    rows = [one.shape[-1] * one.element_size() for one in model.parameters() if one.requires_grad and one.dim()]
    return max(min([*rows, state_bytes // _LEAST_SHARDS]), _LEAST_SHARD_BYTES)


def _unborn_bytes(optimizer: torch.optim.Optimizer) -> int:
    """What one of torch's own optimizers will keep per parameter: it steps once on tensors without memory.

    Some look at values (ASGD, Adafactor): they step in host memory, on one parameter after the other.
    """
    if not type(optimizer).__module__.startswith("torch.optim"):
        return 0
    try:
        return _stepped_bytes(optimizer, optimizer.param_groups, torch.device("meta"))
    except RuntimeError:
        return sum(_bytes_one_by_one(optimizer, group) for group in optimizer.param_groups)


def _bytes_one_by_one(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> int:
    """What it will keep of the parameters of a group; of those that are alike one is stepped."""
    found: dict[tuple[Any, ...], int] = {}
    settings = {key: value.to(HOST) if isinstance(value, Tensor) else value for key, value in group.items()}
    total = 0
    for parameter in group["params"]:
        kind = (parameter.shape, parameter.dtype, parameter.requires_grad)
        if kind not in found:
            found[kind] = _stepped_bytes(optimizer, [{**settings, "params": [parameter]}], HOST)
        total += found[kind]
    return total


def _stepped_bytes(optimizer: torch.optim.Optimizer, groups: Sequence[Mapping[str, Any]], device: torch.device) -> int:
    """What another one of its kind keeps once it has stepped on tensors like these on a device."""
    kind = type(optimizer)
    accepted = inspect.signature(kind).parameters
    plain = dict.fromkeys(_NEED_MEMORY & accepted.keys(), False)
    shadows = [{**group, **plain, "params": [_shadow(one, device) for one in group["params"]]} for group in groups]
    twin = kind(shadows, **{key: value for key, value in optimizer.defaults.items() if key in accepted} | plain)
    twin.step()
    return sum(_num_bytes(value) for state in twin.state.values() for value in state.values() if isinstance(value, Tensor))


def _shadow(parameter: nn.Parameter, device: torch.device) -> nn.Parameter:
    shadow = nn.Parameter(torch.zeros_like(parameter, device=device), requires_grad=parameter.requires_grad)
    if parameter.requires_grad:
        shadow.grad = torch.zeros_like(shadow)
    return shadow


def _require_same_model(own: StateEntries, arrived: StateEntries) -> None:
    for owner, key in own | arrived:
        here, there = own.get((owner, key)), arrived.get((owner, key))
        if key in (_BUFFER, _PARAMETER) and shape_and_type(here) != shape_and_type(there):
            message = (
                f"{owner!r} is {shape_and_type(here)} here and {shape_and_type(there)} with the others, who train another model"
            )
            raise ReconfigurationError(f"{message}; {_WAY_OUT}", field=key, value=owner)


def _require_same_training(own: StateEntries, arrived: StateEntries) -> None:
    kind, theirs = own[_OPTIMIZER, _KIND], arrived.get((_OPTIMIZER, _KIND), "an earlier version of Kintsugi")
    if kind != theirs:
        raise ReconfigurationError(f"is {kind}, and the others train with {theirs}; {_WAY_OUT}", field="optimizer", value=kind)
    for owner, key in own | arrived:
        here, there = own.get((owner, key)), arrived.get((owner, key))
        if key == _GROUP and here != there:
            message = f"parameter {owner!r} is in {_group_of(here)} here and in {_group_of(there)} with the others"
            raise ReconfigurationError(f"{message}; {_WAY_OUT}", field="optimizer", value=owner)
    for here, there in zip_longest(own[_OPTIMIZER, _REDUCED], arrived[_OPTIMIZER, _REDUCED]):
        if here != there:
            message = f"{_name_of(here)} is reduced here where the others reduce {_name_of(there)}: train and average the same"
            raise ReconfigurationError(f"{message}, declared in the same order, or name another job", field="model", value=here)
    here, there = (one[_OPTIMIZER, _CHUNK_BYTES] for one in (own, arrived))
    if here != there:
        raise ReconfigurationError(f"are {here} here and {there} with the others: say the same", field=_CHUNK_BYTES, value=here)
    here, there = (one[_OPTIMIZER, _SCHEDULED] for one in (own, arrived))
    if here != there:
        message = f"are {', '.join(here) or 'none'} here and {', '.join(there) or 'none'} with the others; {_WAY_OUT}"
        raise ReconfigurationError(message, field="schedules", value=str(here))


def _name_of(name: str | None) -> str:
    return "nothing more" if name is None else repr(name)


def _group_of(number: int | None) -> str:
    return "no group" if number is None else f"group {number}"


def _by_owner(arrived: StateEntries) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = defaultdict(dict)
    for (owner, key), value in arrived.items():
        found[owner][key] = value
    return found


def _group(index: int) -> str:
    return f"param_groups[{index}]"


def _is_still(key: str, value: Any) -> bool:
    return key == _PARAMETER and not value.requires_grad


def _num_bytes(value: Any) -> int:
    return value.numel() * value.element_size() if isinstance(value, Tensor) else 0
