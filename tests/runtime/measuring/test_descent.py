"""Where a backward pass is, by the gradients that arrive."""

from functools import partial

import torch
from torch import nn

from kintsugi.runtime.measuring.descent import Descent


class Counting:
    """Marks that remember in which layer's backward pass they were set."""

    def __init__(self, seen):
        self._seen, self.lengths = seen, []

    def add(self):
        self.lengths.append(len(self._seen))
        return len(self.lengths) - 1


class Noted(torch.autograd.Function):
    """The identity; its backward pass says so."""

    @staticmethod
    def forward(ctx, value, seen, name):
        ctx.seen, ctx.name = seen, name
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.seen.append(ctx.name)
        return gradient, None, None


def passed(layers, values, passing=torch.autograd.backward):
    """What was seen in which layer's span, by layer."""
    seen = []
    marks = Counting(seen)
    descent = Descent(marks, len(layers))
    for index, layer in enumerate(layers):
        values = layer(seen, *values)
        if index + 1 < len(layers):
            descent.watch(index, values)
    spans = descent.run(partial(passing, [values[0].sum()]))
    return [None if span is None else seen[marks.lengths[span[0]] : marks.lengths[span[1]]] for span in spans]


def noted(name, weight):
    return lambda seen, value, *rest: (Noted.apply(value * weight, seen, name), *rest)


WEIGHTS = [nn.Parameter(torch.ones(3)) for _ in range(4)]


def test_each_layer_is_passed_in_its_own_span():
    layers = [noted(number, weight) for number, weight in enumerate(WEIGHTS)]
    assert passed(layers, (torch.ones(3),)) == [[0], [1], [2], [3]]


def test_a_layer_that_passes_on_what_it_was_given_takes_nothing():
    layers = [noted(0, WEIGHTS[0]), lambda _, *values: values, noted(2, WEIGHTS[2])]
    assert passed(layers, (torch.ones(3),)) == [[0], None, [2]]


def test_what_goes_past_a_layer_is_the_earlier_ones():
    def forked(seen, value):
        return noted("a", WEIGHTS[0])(seen, value) + noted("b", WEIGHTS[1])(seen, value)

    def joined(seen, value, other):
        return noted("c", WEIGHTS[2])(seen, value + other)

    layers = [forked, noted("past", WEIGHTS[3]), joined]
    assert passed(layers, (torch.ones(3),)) == [["b", "a"], ["past"], ["c"]]


def test_what_needs_no_gradient_is_not_reached():
    layers = [lambda _, value: (value + 1,), noted(1, WEIGHTS[1]), noted(2, WEIGHTS[2])]
    assert passed(layers, (torch.ones(3),)) == [None, [1], [2]]


def test_nobody_is_told_once_it_is_over():
    marks = Counting([])
    descent = Descent(marks, 2)
    value = WEIGHTS[0] * 2
    descent.watch(0, (value, WEIGHTS[1]))
    loss = (value * WEIGHTS[1]).sum()
    descent.run(partial(torch.autograd.backward, [loss], retain_graph=True))
    before = len(marks.lengths)
    torch.autograd.backward([loss])
    assert len(marks.lengths) == before == 4
