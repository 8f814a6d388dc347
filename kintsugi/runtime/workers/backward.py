"""The backward pass of a stage, in one or in two parts.

The input part yields the gradients of the stage's inputs, which the stage before waits for; the weight part yields those
of its weights, later. Both together compute what one pass computes, operation by operation. Only autograd's public
graph is used: `torch.distributed.pipelining` splits too, but refuses outputs that are views and leaves out weights that
reach an output on no way that an input takes.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from kintsugi.runtime.models import Activations


@dataclass(slots=True)
class _Cut:
    """A node between outputs and inputs, with those of its next edges that lead to weights alone."""

    node: Node
    weight_edges: tuple[GradientEdge, ...]
    gradients: tuple[Tensor | None, ...] = ()
    """Of the node's outputs, once the input part has passed it."""

    def keep(self, gradients: tuple[Tensor, ...]) -> None:
        self.gradients = gradients


@dataclass(slots=True)
class PassedStage:
    """A micro-batch between its forward pass and its last backward pass in one stage; it keeps no output alive."""

    inputs: Activations
    roots: tuple[GradientEdge, ...]
    """Where the backward pass starts: at the loss, or at the outputs that need a gradient."""
    _cuts: list[_Cut] = field(default_factory=list)
    _to_weights: list[tuple[GradientEdge, Tensor | None]] = field(default_factory=list)
    """Edges that lead to weights alone, with their gradients."""

    @classmethod
    def of(cls, inputs: Activations, outputs: Activations, loss: Tensor | None) -> Self:
        """After a forward pass; the last stage's has a loss."""
        ends = [output for output in outputs if output.requires_grad] if loss is None else [loss]
        return cls(inputs, tuple(map(get_gradient_edge, ends)))

    def backward(self, gradients: Sequence[Tensor]) -> Activations:
        """The whole pass: add the weights' gradients to theirs; those of the inputs that need one.

        Args:
            gradients: of the outputs that need one; nothing where there is a loss.
        """
        torch.autograd.backward(self.roots, self._given(gradients))
        return self._zeros_for_none([tensor.grad for tensor in self._wanted])

    def backward_input(self, gradients: Sequence[Tensor]) -> Activations:
        """The input part: gradients of the inputs that need one. The whole pass where it cannot be split.

        That is where no input needs a gradient, and where a weight that an operation on the way to the inputs takes as
        it is serves another one, too.
        """
        given = self._given(gradients)
        cuts = find_cuts([root.node for root in self.roots], [get_gradient_edge(tensor).node for tensor in self._wanted])
        if cuts is None:
            return self.backward(gradients)
        self._cuts, on_way = cuts
        self._to_weights = [(root, gradient) for root, gradient in zip(self.roots, given, strict=True) if root.node not in on_way]
        handles = [cut.node.register_prehook(cut.keep) for cut in self._cuts]
        try:
            found = torch.autograd.grad(self.roots, self._wanted, given, retain_graph=True, allow_unused=True)
        finally:
            for handle in handles:
                handle.remove()
        return self._zeros_for_none(found)

    def backward_weight(self) -> None:
        """The weight part: add the weights' gradients to theirs. Nothing where the input part was the whole pass."""
        for cut in self._cuts:
            arrived = [(GradientEdge(cut.node, index), g) for index, g in enumerate(cut.gradients) if g is not None]
            if arrived:
                edges, gradients = zip(*arrived, strict=True)
                found = torch.autograd.grad(edges, cut.weight_edges, gradients, retain_graph=True, allow_unused=True)
                self._to_weights += [(edge, g) for edge, g in zip(cut.weight_edges, found, strict=True) if g is not None]
        if self._to_weights:
            edges, gradients = zip(*self._to_weights, strict=True)
            torch.autograd.backward(edges, gradients)

    @property
    def _wanted(self) -> tuple[Tensor, ...]:
        return tuple(tensor for tensor in self.inputs if tensor.requires_grad)

    def _given(self, gradients: Sequence[Tensor]) -> list[Tensor | None]:
        """The roots' gradients; that of the loss is one, which None stands for."""
        return list(gradients) or [None] * len(self.roots)

    def _zeros_for_none(self, gradients: Sequence[Tensor | None]) -> Activations:
        return tuple(
            torch.zeros_like(tensor) if gradient is None else gradient
            for tensor, gradient in zip(self._wanted, gradients, strict=True)
        )


def find_cuts(roots: Sequence[Node], targets: Sequence[Node]) -> tuple[list[_Cut], frozenset[Node]] | None:
    """Nodes between roots and targets from which weights branch off, and all nodes between; None where it cannot be split.

    It can where no branch is reached from between in another way: then nothing is counted twice. O(nodes and edges).
    """
    order = _topological(roots)
    on_way = set(targets)
    for node in reversed(order):
        if any(following in on_way for following, _ in node.next_functions):
            on_way.add(node)
    if on_way.isdisjoint(roots):
        return None
    comes_from = _comes_from(order, on_way)
    cuts = []
    for node in order:
        branches = [(n, i) for n, i in node.next_functions if n is not None and n not in on_way] if node in on_way else []
        if any(len(comes_from[branch]) > 1 for branch, _ in branches):
            return None
        if branches:
            cuts.append(_Cut(node, tuple(GradientEdge(*branch) for branch in dict.fromkeys(branches))))
    return cuts, frozenset(on_way)


def _comes_from(order: Sequence[Node], sources: Collection[Node]) -> dict[Node, set[Node]]:
    """For every node the nodes before it, as far as `sources` lead to them."""
    result: dict[Node, set[Node]] = defaultdict(set)
    for node in order:
        if node in sources or node in result:
            for following, _ in node.next_functions:
                if following is not None:
                    result[following].add(node)
    return result


def _topological(roots: Sequence[Node]) -> list[Node]:
    """All nodes that lead back from `roots`, each before those it leads to."""
    finished: dict[Node, None] = {}
    seen: set[Node] = set()
    stack = [(root, False) for root in roots]
    while stack:
        node, is_left = stack.pop()
        if is_left:
            finished[node] = None
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack += [(following, False) for following, _ in node.next_functions if following is not None]
    return list(reversed(finished))
