"""Letting go of what operations saved for their backward pass, one by one, while the graph as a whole stays.

Autograd frees what every operation saved that it passes through, or nothing: a graph that is passed through again in part has to
be retained whole. Hooks on saved tensors, which are public, hand each out once and forget it.
"""

from collections.abc import Iterable
from functools import cache
from typing import Any

from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

from kintsugi.runtime.recomputation import Place

_SAVED, _RAW = "_saved_", "_raw_saved_"


def read_once(nodes: Iterable[Node]) -> None:
    """Let operations forget what they saved as soon as they have read it: they are passed through once more at most.

    What others look after (`torch.utils.checkpoint`) stays with them, and what functions in Python saved stays, too: they may read
    it as often as they like.

    Raises:
        RuntimeError: something was changed in place after it was saved, as autograd says it when it reads it.
    """
    for node in nodes:
        if not isinstance(node, BackwardCFunction):
            for name in _names(type(node)):
                _read_once(node, name)


def _read_once(node: Node, name: str) -> None:
    saved = _several(getattr(node, _RAW + name))
    hooks = [getattr(one, "unpack_hook", _read_once) for one in saved]  # a torch that does not tell might have one
    if not any(hooks):
        for one, value in zip(saved, _several(getattr(node, _SAVED + name)), strict=True):
            if isinstance(value, Tensor):
                one.register_hooks(_held, list.pop)
    else:
        for one in saved:
            if isinstance(place := getattr(one, "data", None), Place):
                place.is_read_once = True


def _several(saved: Any) -> tuple[Any, ...]:
    """Some operations save lists."""
    return tuple(saved) if isinstance(saved, tuple | list) else (saved,)


def _held(tensor: Tensor) -> list[Tensor]:
    return [tensor]


@cache
def _names(kind: type[Node]) -> tuple[str, ...]:
    """Of what operations of a kind save."""
    return tuple(name.removeprefix(_RAW) for name in dir(kind) if name.startswith(_RAW))
