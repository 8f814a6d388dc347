"""All that a plain script trains with, as one part of a checkpoint: model, optimizer and scheduler, and back."""

import json
from collections import Counter
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from kintsugi.core.errors import InvalidInputError
from kintsugi.runtime.checkpoints.snapshots import Entries
from kintsugi.runtime.optimizer_state import are_alike, kind_of, load_exactly
from kintsugi.runtime.synchronization.wrapping import WrappingOptimizer, within
from kintsugi.runtime.values import from_plain, to_plain

_MODEL, _OPTIMIZER, _SCHEDULER, _GROUPS, _KIND = "model", "optimizer", "scheduler", "groups", "kind"
_EXTRA = "extra_state"
"""What a module's `get_extra_state` gives beside tensors."""


class Stateful(Protocol):
    """What goes on from a state, as torch's optimizers and schedulers do."""

    def state_dict(self) -> dict[str, Any]:
        """The state: plain values and tensors, of any depth."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there."""


def entries_of(model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Stateful | None) -> Entries:
    """Everything by name; tensors are live.

    Raises:
        InvalidInputError: the model, the optimizer or the scheduler keeps what is neither plain nor a tensor.
    """
    state = model.state_dict()
    entries: Entries = {f"{_MODEL}|{name}": value for name, value in state.items() if isinstance(value, Tensor)}
    if extra := {name: value for name, value in state.items() if not isinstance(value, Tensor)}:
        entries |= _described(_EXTRA, extra)
    entries |= {_KIND: kind_of(within(optimizer))} | _described(_OPTIMIZER, optimizer.state_dict())
    return entries if scheduler is None else entries | _described(_SCHEDULER, scheduler.state_dict())


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of a model's state by name."""
    return {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}


def load(entries: Entries, model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Stateful | None) -> None:
    """Go on from what `entries_of` gave, or from what earlier versions wrote.

    Raises:
        InvalidInputError: it is of another kind of optimizer.
    """
    _require_alike(entries.get(_KIND), kind_of(within(optimizer)))
    state = {name.partition("|")[2]: value for name, value in entries.items() if name.startswith(f"{_MODEL}|")}
    model.load_state_dict(state | (_read(_EXTRA, entries) if _EXTRA in entries else {}))
    is_earlier = _GROUPS in entries
    load_exactly(optimizer, _earlier_optimizer(entries) if is_earlier else _read(_OPTIMIZER, entries))
    if scheduler is not None:
        scheduler.load_state_dict(_earlier_scheduler(entries, scheduler) if is_earlier else _read(_SCHEDULER, entries))


def _require_alike(was: str | None, now: str) -> None:
    """Of a wrapped optimizer earlier versions told the wrapper's kind, which says nothing about the one within."""
    if was is not None and WrappingOptimizer.__name__ not in was.split() and not are_alike(was, now):
        before, own = was.partition(" ")[0], now.partition(" ")[0]
        raise InvalidInputError(
            f"is {own}, and the checkpoint is of {before}: take that, or a new folder", field=_OPTIMIZER, value=own
        )


def _described(name: str, state: dict[str, Any]) -> Entries:
    """A text, and the tensors that it numbers."""
    tensors: list[Tensor] = []
    text = json.dumps(to_plain(state, name, tensors))
    return {name: text} | {f"{name}|{number}": tensor.detach() for number, tensor in enumerate(tensors)}


def _read(name: str, entries: Entries) -> dict[str, Any]:
    numbers = (int(key.partition("|")[2]) for key in entries if key.startswith(f"{name}|"))
    state: dict[str, Any] = from_plain(json.loads(entries[name]), [entries[f"{name}|{number}"] for number in sorted(numbers)])
    return state


def _earlier_optimizer(entries: Entries) -> dict[str, Any]:
    """As it was once written: one entry for each value of a parameter's state."""
    states: dict[int, dict[str, Any]] = {}
    for name, value in entries.items():
        if name.startswith(f"{_OPTIMIZER}|"):
            _, index, key = name.split("|")
            states.setdefault(int(index), {})[key] = value
    return {"state": states, "param_groups": json.loads(entries[_GROUPS])}


def _earlier_scheduler(entries: Entries, own: Stateful) -> dict[str, Any]:
    """As it was once written: without the kinds of its values, which are those of its own now."""
    state: dict[str, Any] = _of_kind(json.loads(entries[_SCHEDULER]), own.state_dict())
    return state


def _of_kind(value: Any, own: Any) -> Any:
    if isinstance(own, Counter):
        return Counter({int(key): count for key, count in value.items()})
    if isinstance(own, dict):
        return {key: _of_kind(one, own.get(key)) for key, one in value.items()}
    if isinstance(own, list) and len(own) == len(value):
        return [_of_kind(one, other) for one, other in zip(value, own, strict=True)]
    return value
