"""The backward pass of a stage, in one or in two parts.

The input part yields the gradients of the stage's inputs, which the stage before waits for; the weight part yields those
of its weights, later. Both together compute what one pass computes, operation by operation. Only autograd's public
graph is used: `torch.distributed.pipelining` splits too, but refuses outputs that are views and leaves out weights that
reach an output on no way that an input takes.

Hooks on tensors and parameters do to the gradients what they do in one pass; one on a tensor that weights branch off from is
called in both parts. The exception is a hook on what was computed from a weight alone, where that weight serves several operations.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from kintsugi.runtime.models import Activations
from kintsugi.runtime.workers.saved import read_once

_Edge = tuple[Node, int]
_WHOLE = ("CheckpointFunctionBackward", "CompiledFunctionBackward")
"""Of reentrant checkpoints and compiled functions, which autograd may only pass through in one backward pass of everything."""
_INPUT_TOO = ("NativeGroupNormBackward0",)
"""Whose kernel in torch 2.13 writes its input's gradient, asked or not, where channels lie beside each other (channels_last)."""


@dataclass(slots=True)
class _Cut:
    """A node between outputs and inputs, with those of its next edges that lead to weights alone."""

    outputs: tuple[GradientEdge, ...]
    """Of the node, as far as anything was computed from them."""
    weight_edges: tuple[GradientEdge, ...]
    weights: tuple[Tensor, ...]
    """That these lead to; nothing where one of them is reached from elsewhere, too, or where `input_edges` are asked for."""
    input_edges: tuple[GradientEdge, ...]
    """Of the node, on the way to inputs, of which it has to be asked for gradients that nobody takes; mostly none."""
    gradients: tuple[Tensor | None, ...] = ()
    """Of the outputs, once the input part has passed the node; before any hook."""

    def arrived(self) -> tuple[list[GradientEdge], list[Tensor]]:
        """The outputs that have a gradient, and these."""
        pairs = [(edge, g) for edge, g in zip(self.outputs, self.gradients, strict=True) if g is not None]
        return [edge for edge, _ in pairs], [gradient for _, gradient in pairs]


@dataclass(slots=True)
class PassedStage:
    """A micro-batch between its forward pass and its last backward pass in one stage; it keeps no output alive."""

    inputs: Activations
    """Until the input part is done."""
    roots: tuple[GradientEdge, ...]
    """Where the backward pass starts: at the loss, or at the outputs that need a gradient. Until the input part is done."""
    is_parted: bool = False
    """Whether an input part was not the whole pass."""
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

        That is where no input needs a gradient, where a weight that an operation on the way to the inputs takes as it is serves
        another one, too, and where a function that is written in Python, compiled or checkpointed would be passed through twice.

        What only the input part needs is let go of on the way; what the gradients of weights are made of stays.
        """
        found = self._parted(gradients)
        self.is_parted = found is not None
        result = self.backward(gradients) if found is None else self._zeros_for_none(found)
        self.inputs, self.roots = (), ()
        return result

    def _parted(self, gradients: Sequence[Tensor]) -> Sequence[Tensor | None] | None:
        """The inputs' gradients; those that arrive where weights branch off are kept. None where the pass cannot be split."""
        given, wanted = self._given(gradients), self._wanted
        targets = [get_gradient_edge(tensor).node for tensor in wanted]
        parts = find_cuts(self.roots, targets)
        if parts is None:
            return None
        self._cuts, on_way = parts
        self._to_weights = [(root, gradient) for root, gradient in zip(self.roots, given, strict=True) if root.node not in on_way]
        read_once(on_way.difference(targets, (cut.outputs[0].node for cut in self._cuts)))
        sought: list[Tensor | GradientEdge] = [*wanted, *(edge for cut in self._cuts for edge in cut.outputs)]
        found = torch.autograd.grad(self.roots, sought, given, retain_graph=True, allow_unused=True)  # type: ignore[arg-type]
        left = iter(found[len(wanted) :])
        for cut in self._cuts:
            cut.gradients = tuple(itertools.islice(left, len(cut.outputs)))
        return found[: len(wanted)]

    def backward_weight(self) -> None:
        """The weight part: add the weights' gradients to theirs. Nothing where the input part was the whole pass.

        What an operation's weights need is let go of with it.
        """
        for cut in self._cuts:
            self._pass_weights(cut)
        if self._to_weights:
            roots, given = zip(*self._to_weights, strict=True)
            torch.autograd.backward(roots, given)

    def _pass_weights(self, cut: _Cut) -> None:
        """From one node on; nobody needs what it saved, and the gradients that arrived there, again."""
        edges, gradients = cut.arrived()
        cut.gradients = ()
        if edges and cut.weights:
            torch.autograd.backward(edges, gradients, inputs=cut.weights)
        elif edges:
            found = torch.autograd.grad(edges, (*cut.weight_edges, *cut.input_edges), gradients, allow_unused=True)
            self._to_weights += [(edge, g) for edge, g in zip(cut.weight_edges, found, strict=False) if g is not None]

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


def find_cuts(roots: Sequence[GradientEdge], targets: Sequence[Node]) -> tuple[list[_Cut], frozenset[Node]] | None:
    """Nodes between roots and targets from which weights branch off, and all nodes between; None where it cannot be split.

    It can where no branch is reached from between in another way: then nothing is counted twice. O(nodes and edges).
    """
    order = _topological([root.node for root in roots])
    on_way = set(targets)
    for node in reversed(order):
        if any(following in on_way for following, _ in node.next_functions):
            on_way.add(node)
    if on_way.isdisjoint(root.node for root in roots):
        return None
    branches = {node: found for node in order if node in on_way and (found := _branches(node, on_way))}
    if any(_is_whole(node, has_weights=node in branches) for node in on_way):
        return None
    comes_from = _comes_from(order, on_way)
    if any(len(comes_from[branch]) > 1 for found in branches.values() for branch, _ in found):
        return None
    apart = {root.node: [(root.node, root.output_nr)] for root in roots if root.node not in on_way}
    weights, outputs = _weights({**branches, **apart}), _outputs(roots, order)
    cuts = []
    for node, found in branches.items():
        inputs = _input_edges(node, on_way)
        cuts.append(_Cut(tuple(outputs[node]), _edges(found), () if inputs else weights[node], inputs))
    if any(_has_hooks(edge.node) for cut in cuts if not cut.weights for edge in cut.weight_edges):
        return None
    return cuts, frozenset(on_way)


def _branches(node: Node, on_way: Collection[Node]) -> list[_Edge]:
    """Those of a node's next edges that lead to weights alone."""
    return [(following, index) for following, index in node.next_functions if following is not None and following not in on_way]


def _input_edges(node: Node, on_way: Collection[Node]) -> tuple[GradientEdge, ...]:
    """A node's next edges on the way to inputs, where its kernel cannot do without being asked for their gradients."""
    if node.name() not in _INPUT_TOO:
        return ()
    return _edges([(following, index) for following, index in node.next_functions if following is not None and following in on_way])


def _edges(branches: Sequence[_Edge]) -> tuple[GradientEdge, ...]:
    """Each once."""
    return tuple(GradientEdge(*branch) for branch in dict.fromkeys(branches))


def _is_whole(node: Node, *, has_weights: bool) -> bool:
    """Whether autograd may pass through a node between once only.

    What is written in Python computes all of its gradients each time, and may do so in the memory of what it was given.
    """
    return isinstance(node, BackwardCFunction) and (has_weights or node.name() in _WHOLE)


def _weights(branches: Mapping[Node, Sequence[_Edge]]) -> dict[Node, tuple[Tensor, ...]]:
    """The weights that branches lead to, by the node that they leave; none where another node's lead to one of them, too."""
    found = {
        node: tuple(weight for leaf in _topological([branch for branch, _ in own]) if (weight := _weight(leaf)) is not None)
        for node, own in branches.items()
    }
    counts = Counter(id(weight) for weights in found.values() for weight in weights)
    return {node: weights if all(counts[id(weight)] == 1 for weight in weights) else () for node, weights in found.items()}


def _weight(node: Node) -> Tensor | None:
    """What a node at the graph's end adds gradients up for."""
    weight: Tensor | None = getattr(node, "variable", None)
    return weight


def _has_hooks(node: Node) -> bool:
    """Whether it adds up for a weight with hooks, which parts of the gradient and their sum would pass each."""
    return (weight := _weight(node)) is not None and bool(weight._backward_hooks)


def _outputs(roots: Sequence[GradientEdge], order: Sequence[Node]) -> dict[Node, dict[GradientEdge, None]]:
    """By node the edges that lead to it."""
    result: dict[Node, dict[GradientEdge, None]] = defaultdict(dict)
    edges = [(root.node, root.output_nr) for root in roots]
    for node, index in itertools.chain(edges, *(node.next_functions for node in order)):
        if node is not None:
            result[node][GradientEdge(node, index)] = None
    return result


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
