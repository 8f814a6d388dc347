"""Where torch's optimizers keep what they go on from, beside a parameter and in its group; what arrives is put there."""

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from kintsugi.core.errors import InvalidInputError
from kintsugi.runtime.combined import single_ones
from kintsugi.runtime.values import from_plain, to_plain
from restorer.packing import HOST, pack

_COUNTER = "step"
_NESTED = ":nested"
"""After the name of a value that holds others: its description; with a number behind it, a tensor in it."""
_IN_GROUP = "param_groups."
"""Before the name of a value that a parameter's group holds."""
_PARAMETERS = "params"
_OF_ALL = frozenset({"state", "param_groups", "defaults"})
"""Attributes of every optimizer, which `OptimizerState` is about."""


class OptimizerState:
    """All that an optimizer goes on from, parameter by parameter: another one may be of some of them, or of others as well.

    Of a group that is what the optimizer changed there since it was made: settings are what the job says.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, *, set_anew: Collection[str] = ()) -> None:
        """`set_anew` are the values of groups that somebody sets before every update."""
        self._optimizer = optimizer
        self._groups = groups_by_parameter(optimizer.param_groups)
        self._left_out = {_PARAMETERS, *set_anew}
        self._made = {
            id(group): {key: _fingerprint(value) for key, value in group.items() if key not in self._left_out}
            for group in optimizer.param_groups
        }
        self._attributes = [(one, _numbers_beside(one)) for one in single_ones(optimizer)]

    def require_nothing_beside(self) -> None:
        """Require, after an update, that it changed nothing but parameters, their state and groups: nothing else moves with them.

        Raises:
            InvalidInputError: with the attribute that it changed.
        """
        for one, before in self._attributes:
            for name, now in _numbers_beside(one).items():
                if not _are_same(before.get(name), now):
                    raise _stays_behind(one, f"whose {name!r} changes with its updates and belongs to no parameter", name)

    def require_by_parameter(self) -> None:
        """Require that `export` of all parameters is everything, at any moment of the training.

        Raises:
            InvalidInputError: the optimizer keeps what belongs to no parameter.
        """
        require_by_parameter(self._optimizer)

    def export(self, parameters: Iterable[Tensor]) -> list[dict[str, Any]]:
        """What there is of each parameter, as `flat` has it; nothing where it is not trained.

        Raises:
            InvalidInputError: the optimizer keeps what cannot be sent, or changed it in a group.
        """
        changed: dict[int, dict[str, Any]] = {}  # parameters share groups

        def exported(parameter: Tensor) -> dict[str, Any]:
            group = self._groups.get(parameter)
            if group is None:
                return {}
            if id(group) not in changed:
                changed[id(group)] = flat(self._changed(group))
            return flat(self._optimizer.state.get(parameter, {})) | changed[id(group)]

        return [exported(parameter) for parameter in parameters]

    def load(self, parameter: Tensor, entries: Mapping[str, Any]) -> None:
        """Go on from what was exported; nothing is done with that of a parameter that is not trained."""
        if not entries or parameter not in self._groups:
            return
        group = self._groups[parameter]
        values = nested({key: kept(key, value, parameter, group) for key, value in entries.items()})
        in_group = {key: values.pop(key) for key in [*values] if key.startswith(_IN_GROUP)}
        group |= {(name := key.removeprefix(_IN_GROUP)): put(group.get(name), value) for key, value in in_group.items()}
        if values:
            self._optimizer.state[parameter] = values

    def take(self, parameter: Tensor, other: "OptimizerState") -> None:
        """Go on with a parameter from where another optimizer is, which is not to go on: both have the same values then."""
        if parameter not in self._groups or parameter not in other._groups:
            return
        if parameter in other._optimizer.state:
            self._optimizer.state[parameter] = other._optimizer.state[parameter]
        self._groups[parameter].update({key: value for key, value in other._groups[parameter].items() if key != _PARAMETERS})

    def _changed(self, group: Mapping[str, Any]) -> dict[str, Any]:
        made = self._made[id(group)]
        return {
            _IN_GROUP + key: value
            for key, value in sorted(group.items())
            if key not in self._left_out and not (key in made and _are_same(made[key], _fingerprint(value)))
        }


def _fingerprint(value: Any) -> Any:
    """What tells a value from any other, to the bit, and stays so when it is changed; itself where it cannot be sent."""
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value).encode()
    try:
        header, payload = pack({("", key): one for key, one in flat({"": value}).items()})
    except InvalidInputError:
        return value
    return header + payload.numpy().tobytes()


def _are_same(told: Any, now: Any) -> bool:
    return told is now or (isinstance(told, bytes) and isinstance(now, bytes) and told == now)


def put(own: Any, value: Any) -> Any:
    """A value in the place of the own one; a tensor stays the same object where it can, for groups may share it."""
    if not (isinstance(own, Tensor) and isinstance(value, Tensor)):
        return value
    if (own.shape, own.dtype) != (value.shape, value.dtype):
        return value.to(own.device)
    with torch.no_grad():
        return own.copy_(value)


def groups_by_parameter(groups: Iterable[dict[str, Any]]) -> dict[Tensor, dict[str, Any]]:
    """The parameter group that each parameter is in."""
    return {parameter: group for group in groups for parameter in group[_PARAMETERS]}


def require_by_parameter(optimizer: torch.optim.Optimizer) -> None:
    """Require that all of an optimizer's state belongs to parameters: nothing else of it goes on where they do.

    Raises:
        InvalidInputError: with the name of what does not.
    """
    if (other := next((key for key in optimizer.state if not isinstance(key, Tensor)), None)) is not None:
        raise _stays_behind(optimizer, f"whose state[{other!r}] belongs to no parameter", str(other))


def _stays_behind(optimizer: torch.optim.Optimizer, what: str, name: str) -> InvalidInputError:
    return InvalidInputError(
        f"is {type(optimizer).__name__}, {what}, and would stay behind where these move: "
        "keep it in param_groups, or beside each parameter (state)",
        field="optimizer",
        value=name,
    )


def _numbers_beside(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Numbers, tensors, and lists and others of them that an optimizer holds as attributes, as told; not what is on or off."""
    return {
        name: _fingerprint(value)
        for name, value in vars(optimizer).items()
        if name not in _OF_ALL and isinstance(value, int | float | Tensor | list | tuple | dict) and not isinstance(value, bool)
    }


def kept(key: str, value: Any, parameter: Tensor, group: Mapping[str, Any]) -> Any:
    """A value of a parameter's state on the device where its optimizer keeps it; what is no tensor as it is.

    Moments live where their parameter does, in the order of its numbers: fused updates pass over memory as it lies. Counters, and
    other single numbers, do so only where updates are fused or capturable, else in host memory: torch's note "special device
    hosting for step". Nothing else is converted.

    Args:
        key: of the value in the state.
        value: wherever it came to lie.
        parameter: whose state it is.
        group: that the parameter is in.
    """
    if not isinstance(value, Tensor):
        return value
    is_moment = key != _COUNTER and (value.dim() > 0 or value.shape == parameter.shape)
    is_beside = is_moment or group.get("fused") or group.get("capturable")
    dtype = torch.float32 if key == _COUNTER and group.get("fused") else value.dtype  # fused updates count in no other
    there = value.to(parameter.device if is_beside else HOST, dtype)
    if there.shape != parameter.shape or there.stride() == parameter.stride():
        return there
    return torch.empty_like(parameter, dtype=dtype, device=there.device, requires_grad=False).copy_(there)


def load_exactly(optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> None:
    """Have an optimizer go on from a copy of a state, as it was: torch's own way casts to the parameters' types."""
    optimizer.load_state_dict(state_dict)
    put_back(optimizer, state_dict)


def put_back(optimizer: torch.optim.Optimizer, state_dict: Mapping[str, Any]) -> None:
    """Copy what was loaded again, without a cast: moments in fp32 beside half precision, say, or the single numbers of NAdam.

    What an optimizer made into another kind, as it does with numbers of earlier versions, is left to it.
    """
    saved = [index for group in state_dict["param_groups"] for index in group[_PARAMETERS]]
    for index, (parameter, group) in zip(saved, groups_by_parameter(optimizer.param_groups).items(), strict=True):
        state = optimizer.state.get(parameter, {})
        told = state_dict["state"].get(index, {})
        values = flat({key: value for key, value in told.items() if type(state.get(key)) is type(value)})
        copies = {key: value.detach().clone() if isinstance(value, Tensor) else value for key, value in values.items()}
        state |= nested({key: kept(key, value, parameter, group) for key, value in copies.items()})


def kind_of(optimizer: torch.optim.Optimizer) -> str:
    """The name of its class, and of those that this is derived from."""
    kinds = type(optimizer).__mro__
    return " ".join(kind.__name__ for kind in kinds[: kinds.index(torch.optim.Optimizer)])


def are_alike(was: str | None, now: str | None) -> bool:
    """Whether an optimizer can go on from the state of another one: one's class is the other's, or derived from it.

    Args:
        was: kind of the one that left the state; null where there was none.
        now: kind of the one that is to go on.
    """
    if was is None or now is None:
        return was == now
    own, other = was.split(), now.split()
    return own[0] in other or other[0] in own


def flat(state: Mapping[str, Any], field: str = "optimizer") -> dict[str, Any]:
    """A parameter's state as it travels: tensors and single plain values; lists and others of them by a text and their tensors.

    Args:
        state: by name.
        field: that an error names, before the name in the state.

    Raises:
        InvalidInputError: with the name of what is neither.
    """
    found: dict[str, Any] = {}
    for name, value in state.items():
        if value is None or isinstance(value, Tensor | bool | int | float | str):
            found[name] = value
        else:
            tensors: list[Tensor] = []
            found[name + _NESTED] = json.dumps(to_plain(value, f"{field}.{name}", tensors))
            found |= {f"{name}{_NESTED}{number}": tensor for number, tensor in enumerate(tensors)}
    return found


def nested(entries: Mapping[str, Any]) -> dict[str, Any]:
    """The state that `flat` was given."""
    found: dict[str, Any] = {}
    for key, value in entries.items():
        name, is_nested, number = key.partition(_NESTED)
        if not is_nested:
            found[name] = value
        elif not number:
            num_tensors = sum(other.startswith(key) for other in entries) - 1
            found[name] = from_plain(json.loads(value), [entries[f"{key}{index}"] for index in range(num_tensors)])
    return found
