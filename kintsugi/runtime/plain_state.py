"""All that a plain script trains with, as one part of a checkpoint: model, optimizer and scheduler, and back."""

import json
from collections import Counter
from typing import Any, Generic, Protocol

import torch
from torch import Tensor, nn

from kintsugi.core.errors import InvalidInputError
from kintsugi.core.logs import get_logger
from kintsugi.runtime.brought import is_expanded
from kintsugi.runtime.checkpoints.snapshots import Entries
from kintsugi.runtime.likeness import worded
from kintsugi.runtime.optimizer_state import are_alike, kind_of, load_exactly
from kintsugi.runtime.synchronization.wrapping import WrappingOptimizer, within
from kintsugi.runtime.values import from_plain, to_plain
from restorer.packing import type_name

_MODEL, _OPTIMIZER, _SCHEDULER, _GROUPS, _KIND = "model", "optimizer", "scheduler", "groups", "kind"
_SCHEDULER_KIND = "scheduler_kind"
_OF_ALL_SCHEDULERS = (torch.optim.lr_scheduler.LRScheduler, Protocol, Generic, object)
_SCHEDULED = {"lr", "momentum", "betas"}
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
        InvalidInputError: the model, the optimizer or the scheduler keeps what is neither plain nor a tensor, or the model a tensor
            that no checkpoint can be loaded into.
    """
    state = model.state_dict()
    tensors = _tensors_in(state)
    _require_memory(tensors)
    entries: Entries = {f"{_MODEL}|{name}": value for name, value in tensors.items()}
    if extra := {name: value for name, value in state.items() if name not in tensors}:
        entries |= _described(_EXTRA, extra)
    entries |= {_KIND: kind_of(within(optimizer))} | _described(_OPTIMIZER, optimizer.state_dict())
    if scheduler is None:
        return entries
    return entries | {_SCHEDULER_KIND: _scheduler_kind(scheduler)} | _described(_SCHEDULER, scheduler.state_dict())


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of a model's state by name."""
    return _tensors_in(model.state_dict())


def _tensors_in(state: dict[str, Any]) -> dict[str, Tensor]:
    return {name: value for name, value in state.items() if isinstance(value, Tensor)}


def _require_memory(tensors: dict[str, Tensor]) -> None:
    for name, value in tensors.items():
        if value.layout is not torch.strided:
            raise InvalidInputError(f"{name!r} is sparse; keep it dense", field=_MODEL, value=name)
        if is_expanded(value):
            message = f"{name!r} is expanded, so its numbers share memory; keep a clone() of it"
            raise InvalidInputError(message, field=_MODEL, value=name)


def load(
    entries: Entries, model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Stateful | None, *, warns: bool = True
) -> None:
    """Go on from what `entries_of` gave, or from what earlier versions wrote.

    The optimizer's settings are those of the checkpoint, as torch has it; a warning names those that the script has otherwise.

    Raises:
        InvalidInputError: it is of another kind of optimizer or scheduler, of other groups or of another type of numbers; nothing
            is loaded then.
    """
    _require_alike(entries.get(_KIND), kind_of(within(optimizer)))
    state = {name.partition("|")[2]: value for name, value in entries.items() if name.startswith(f"{_MODEL}|")}
    _require_same_numbers(state, tensors_of(model))
    is_earlier = _GROUPS in entries
    saved = _earlier_optimizer(entries) if is_earlier else _read(_OPTIMIZER, entries)
    _require_same_groups(saved["param_groups"], optimizer.param_groups)
    _require_same_scheduler(entries, scheduler)
    if warns:
        _warn_of_other_settings(saved["param_groups"], optimizer.param_groups, is_scheduled=_SCHEDULER in entries)
        if scheduler is None and _SCHEDULER in entries:
            get_logger("kintsugi.runtime").warning("goes on without the checkpoint's scheduler: learning rates stay as they are")
    model.load_state_dict(state | (_read(_EXTRA, entries) if _EXTRA in entries else {}))
    load_exactly(optimizer, saved)
    if scheduler is not None:
        scheduler.load_state_dict(_earlier_scheduler(entries, scheduler) if is_earlier else _read(_SCHEDULER, entries))


def _require_same_numbers(saved: dict[str, Any], own: dict[str, Tensor]) -> None:
    for name, value in own.items():
        was = saved.get(name)
        if was is not None and was.dtype != value.dtype:
            message = f"{name!r} is {type_name(value.dtype)}, and {type_name(was.dtype)} in the checkpoint: make it that"
            raise InvalidInputError(f"{message}, or take a new folder", field=_MODEL, value=name)


def _require_same_groups(saved: list[dict[str, Any]], own: list[dict[str, Any]]) -> None:
    was, now = ([len(group["params"]) for group in groups] for groups in (saved, own))
    if was != now:
        message = f"has groups of {now} parameters, and of {was} in the checkpoint: make it so, or take a new folder"
        raise InvalidInputError(message, field=_OPTIMIZER, value=str(now))


def _require_same_scheduler(entries: Entries, scheduler: Stateful | None) -> None:
    """Earlier versions did not tell its kind. What one sets in the optimizer as it is made, the checkpoint's settings undo."""
    if scheduler is None:
        return
    own, was = type(scheduler).__name__, entries.get(_SCHEDULER_KIND)
    if _SCHEDULER not in entries:
        message = f"is {own}, and the checkpoint has none: leave it out, or take a new folder"
        raise InvalidInputError(message, field=_SCHEDULER, value=own)
    if was is not None and not are_alike(was, _scheduler_kind(scheduler)):
        message = f"is {own}, and the checkpoint is of {was.partition(' ')[0]}: take that, or a new folder"
        raise InvalidInputError(message, field=_SCHEDULER, value=own)


def _scheduler_kind(scheduler: Stateful) -> str:
    """The name of its class, and of those that this is derived from, up to torch's of all schedulers."""
    kinds = type(scheduler).__mro__
    return " ".join(kind.__name__ for kind in kinds if kind not in _OF_ALL_SCHEDULERS)


def _warn_of_other_settings(saved: list[dict[str, Any]], own: list[dict[str, Any]], *, is_scheduled: bool) -> None:
    """Schedulers change rates and momenta; most keep the rate of the beginning as well, which is compared."""
    apart = {"params"} | (_SCHEDULED if is_scheduled else set())
    for index, (was, now) in enumerate(zip(saved, own, strict=True)):
        for name in sorted((was.keys() & now.keys()) - apart):
            if worded(was[name]) != worded(now[name]):
                get_logger("kintsugi.runtime").warning(
                    "a setting of the optimizer is the checkpoint's, and not the script's; change it after restore",
                    group=index,
                    setting=name,
                    checkpoint=worded(was[name]),
                    script=worded(now[name]),
                )


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
