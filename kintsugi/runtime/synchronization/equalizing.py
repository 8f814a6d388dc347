"""How the optimizers of several workers come to keep the same: the mean of what has one, all else as who took most steps has it.

Workers may keep different things: a parameter that one of them has not used yet has no state there. So they tell each other what
they keep before anything is summed.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from kintsugi.core.errors import InvalidInputError
from kintsugi.runtime.optimizer_state import groups_by_parameter, kept, put, require_by_parameter
from kintsugi.runtime.synchronization.membership import broadcast
from kintsugi.runtime.synchronization.transport import Transport
from kintsugi.runtime.values import to_plain

_OWN = {"params", "lr", "initial_lr"}
"""What each worker keeps of its groups: learning rates are its schedulers', and are compared in every synchronous step."""

Key = tuple[int, str]
"""Number of the owner, a parameter or behind them all a group, and the name of what is kept."""
Layout = tuple[str, ...] | None
"""Type and sizes of what has a mean; null of what has none."""


def agreed_state(
    optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter], transport: Transport, num_steps: Sequence[int]
) -> dict[Key, Any]:
    """What all optimizers are to keep; nothing is touched. All workers call it.

    Means are over those workers that keep such a value. What is no floating-point tensor has none, nor has the state that
    belongs to other tensors than those and single numbers, as where it is quantised.

    Args:
        optimizer: this worker's.
        parameters: that are synchronised, in one order on all workers.
        transport: to the other workers.
        num_steps: that each worker took.

    Raises:
        CommunicationError: a worker is gone.
        InvalidInputError: workers keep different things of one name, or what cannot be sent.
    """
    own = _kept(optimizer, parameters)
    told = _layout(own)
    tables: list[dict[Key, Layout]] = [broadcast(transport, rank, {"told": told})["told"] for rank in range(transport.num_workers)]
    layout = {key: one for table in tables for key, one in table.items()}
    for table in tables:
        _require_same(layout, table)
    holders = {key: [rank for rank, table in enumerate(tables) if key in table] for key in layout}
    means = _means({key: one for key, one in layout.items() if one is not None}, own, holders, transport)
    sources = {key: max(holders[key], key=lambda rank: (num_steps[rank], -rank)) for key, one in layout.items() if one is None}
    return means | _sent(sources, own, transport)


def take(optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter], agreed: Mapping[Key, Any]) -> None:
    """Keep what was agreed."""
    groups = groups_by_parameter(optimizer.param_groups)
    for (number, name), value in agreed.items():
        if number < len(parameters):
            parameter = parameters[number]
            state = optimizer.state[parameter]
            state[name] = put(state.get(name), kept(name, value, parameter, groups[parameter]))
        else:
            group = optimizer.param_groups[number - len(parameters)]
            group[name] = put(group.get(name), value)


def _kept(optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter]) -> dict[Key, Any]:
    require_by_parameter(optimizer)
    owners = [optimizer.state.get(parameter, {}) for parameter in parameters]
    owners += [{name: value for name, value in group.items() if name not in _OWN} for group in optimizer.param_groups]
    return {(number, name): value for number, values in enumerate(owners) for name, value in values.items() if value is not None}


def _layout(own: Mapping[Key, Any]) -> dict[Key, Layout]:
    """Of all that this worker keeps.

    Raises:
        InvalidInputError: it is neither plain nor a tensor.
    """
    entire = {number for (number, _), value in own.items() if _is_entire(value)}
    told: dict[Key, Layout] = {}
    for key, value in own.items():
        if isinstance(value, Tensor) and value.is_floating_point() and key[0] not in entire:
            told[key] = (str(value.dtype).removeprefix("torch."), *map(str, value.shape))
        else:
            to_plain(value, f"optimizer.{key[1]}", [])
            told[key] = None
    return told


def _is_entire(value: Any) -> bool:
    """Whether it is many numbers without a mean, which others of the state belong to."""
    return isinstance(value, Tensor) and value.numel() > 1 and not value.is_floating_point()


def _require_same(layout: Mapping[Key, Layout], table: Mapping[Key, Layout]) -> None:
    for (number, name), told in table.items():
        if told != layout[number, name]:
            here, there = (" ".join(one) if one else "no tensor with a mean" for one in (told, layout[number, name]))
            message = (
                f"keeps {name!r} of parameter {number} as {here} on one worker and as {there} on another; keep the same on all"
            )
            raise InvalidInputError(message, field="optimizer", value=name)


def _means(
    layout: Mapping[Key, tuple[str, ...]], own: Mapping[Key, Any], holders: Mapping[Key, Sequence[int]], transport: Transport
) -> dict[Key, Any]:
    """Summed by type, with zeros for what this worker does not keep."""
    summings = []
    for dtype in dict.fromkeys(told[0] for told in layout.values()):
        shapes = {key: [int(size) for size in told[1:]] for key, told in layout.items() if told[0] == dtype}
        empty = {key: torch.zeros(shape, dtype=getattr(torch, dtype)) for key, shape in shapes.items() if key not in own}
        pieces = [empty[key] if key in empty else own[key].detach().cpu() for key in shapes]
        summings.append((shapes, transport.begin_sum(torch.cat([piece.reshape(-1) for piece in pieces]))))
    found: dict[Key, Any] = {}
    for shapes, summing in summings:
        sizes = [torch.Size(shape).numel() for shape in shapes.values()]
        for (key, shape), piece in zip(shapes.items(), torch.split(summing.wait(), sizes), strict=True):
            found[key] = piece.view(shape) / len(holders[key])
    return found


def _sent(sources: Mapping[Key, int], own: Mapping[Key, Any], transport: Transport) -> dict[Key, Any]:
    """What has no mean, each from its source."""
    found: dict[Key, Any] = {}
    for rank in sorted(set(sources.values())):
        mine = {key: own[key] for key, source in sources.items() if source == rank == transport.rank}
        found |= broadcast(transport, rank, {"kept": mine})["kept"]
    return found
