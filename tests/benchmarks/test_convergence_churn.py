"""The curves of the churn benchmark are of exact data parallelism, over the nodes and data that are said to be there."""

import itertools
import threading
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.convergence_churn import CHANGES, FOUR_EVENTS, MULTI_PARTY, ONE_OWNER, Run, deepest_fall, report, shards
from benchmarks.learners import (
    DIGITS,
    LEARNERS,
    LORA,
    MAX_GRADIENT_NORM,
    NUM_NODES,
    Data,
    LowRank,
    accuracy,
    learn,
    limit,
    loss,
)
from kintsugi.runtime.overlay.coordinator import Coordinator
from tests.runtime.overlay.crew import OPTIONS
from tests.runtime.overlay.desk import Desk
from tests.runtime.synchronization.workers import together


def test_one_pass_over_all_batches_gives_the_mean_of_the_nodes_gradients():
    learner = LEARNERS[DIGITS]
    data, model = learner.data(0), learner.model(0).double()
    inputs = data.inputs.double()
    chosen = [own[:5] for own in data.nodes[:4]]
    means = [torch.zeros_like(parameter) for parameter in model.parameters()]
    for batch in chosen:
        gradients = torch.autograd.grad(loss(model, inputs[batch], data.targets[batch]), list(model.parameters()))
        for mean, gradient in zip(means, gradients, strict=True):
            mean.add_(gradient / len(chosen))
    everything = torch.cat(chosen)
    at_once = torch.autograd.grad(loss(model, inputs[everything], data.targets[everything]), list(model.parameters()))
    for mean, gradient in zip(means, at_once, strict=True):
        assert torch.allclose(mean, gradient, rtol=1e-12, atol=1e-15)


def test_nodes_bring_their_data_and_take_them_along():
    data = LEARNERS[DIGITS].data(1)
    everything = torch.cat(data.nodes)
    assert len(set(everything.tolist())) == len(everything), "nobody has what another one has"
    assert not set(everything.tolist()) & set(data.held_out.tolist())
    run = Run(DIGITS, MULTI_PARTY, "one joins", CHANGES["one joins"], 1)
    num_epochs = LEARNERS[DIGITS].num_epochs
    assert [len(run.nodes(epoch)) for epoch in (0, num_epochs // 2 - 1, num_epochs // 2, num_epochs - 1)] == [4, 4, 5, 5]
    assert all(map(torch.equal, shards(run, data, run.nodes(0)), data.nodes))


def test_the_data_of_one_owner_are_divided_among_whoever_is_there():
    data = LEARNERS[DIGITS].data(1)
    run = Run(DIGITS, ONE_OWNER, "one joins", CHANGES["one joins"], 1)
    for nodes in ((0, 1, 2, 3), (0, 1, 2, 3, 4)):
        parts = shards(run, data, nodes)
        assert len(parts) == len(nodes)
        assert sorted(torch.cat(parts).tolist()) == sorted(torch.cat(data.nodes).tolist())


def test_the_four_events_are_those_of_the_paper():
    run = Run(DIGITS, MULTI_PARTY, "four events", FOUR_EVENTS["four events"], 0)
    sizes = [len(run.nodes(epoch)) for epoch in range(LEARNERS[DIGITS].num_epochs)]
    changes = [(before, after) for before, after in itertools.pairwise(sizes) if before != after]
    assert changes == [(4, 5), (5, 4), (4, 5), (5, 6)]
    assert run.nodes(LEARNERS[DIGITS].num_epochs - 1) == tuple(range(NUM_NODES))


def test_what_is_low_rank_begins_as_the_layer_itself_and_learns_little():
    linear = torch.nn.Linear(8, 6)
    beside = LowRank(linear)
    hidden = torch.randn(3, 8)
    assert torch.equal(beside(hidden), linear(hidden))
    assert LEARNERS[LORA].batch > 0


def test_the_table_tells_the_end_and_what_events_did():
    num_epochs = LEARNERS[DIGITS].num_epochs
    rising = [[float(epoch + seed) for epoch in range(num_epochs + 1)] for seed in range(2)]
    text = report({(DIGITS, MULTI_PARTY, "four events"): rising, (DIGITS, MULTI_PARTY, "4 nodes"): rising})
    last = f"{num_epochs + 0.5:.1f}"
    assert f"| residual network, digits | multi-party | four events | {last} | 0.5 | 0.0 | +2.0, +2.0, +2.0, +2.0 |" in text
    assert f"| residual network, digits | multi-party | 4 nodes | {last} | 0.5 | 0.0 | none |" in text


@given(st.integers(1, 4), st.lists(st.integers(0, 100), min_size=17, max_size=17))
def test_a_fall_counts_at_whatever_time_and_however_long_it_takes_once_accuracy_has_settled(half, values):
    settled = [float(value) for value in values[: 4 * half + 1]]
    unsettled = [101.0, 0.0] * half
    assert deepest_fall(unsettled + settled) == max(best - value for at, best in enumerate(settled) for value in settled[at:])


def test_a_strange_batch_moves_the_model_no_further_than_others():
    learner = LEARNERS[DIGITS]
    data, model = learner.data(0), learner.model(0)
    strange = Data(100.0 * data.inputs, data.targets, data.nodes, data.held_out)
    with torch.no_grad():
        model[-1].project.weight.mul_(100.0)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    learn(model, torch.optim.SGD(model.parameters(), lr=1.0), strange, data.nodes[0][:8])
    moved = torch.cat([(one - other).detach().flatten() for one, other in zip(before, model.parameters(), strict=True)])
    assert moved.norm() == pytest.approx(MAX_GRADIENT_NORM, rel=1e-3)


def test_the_runtime_computes_what_the_curves_show_while_a_node_joins_and_one_leaves():
    desk, names, has_stepped = Desk(), ("0", "1", "2"), {name: threading.Event() for name in "012"}
    nodes = {name: Node(name, seed) for seed, name in enumerate(names)}

    def is_over(name: str, contributors: list[tuple[str, ...]]) -> bool:
        return names in contributors if name == "0" else contributors[-3:] == [("1", "2")] * 3

    def follow(name: str, after: str | None) -> dict[int, tuple[str, ...]]:
        assert after is None or has_stepped[after].wait(120.0)
        return nodes[name].follow(desk, has_stepped[name], partial(is_over, name))

    seen = together(*[partial(follow, name, after) for name, after in (("0", None), ("1", "0"), ("2", "1"))])
    contributors = {step: names for one in seen for step, names in one.items()}
    alone = Node("alone", 0)
    for step in range(len(contributors)):
        alone.learn(step, contributors[step])
    assert torch.equal(nodes["1"].flat(), nodes["2"].flat())
    torch.testing.assert_close(nodes["1"].flat(), alone.flat(), rtol=1e-9, atol=1e-11)
    assert nodes["2"].schedule.last_epoch == len(contributors)


class Node:
    """One node of the digits' learner in 64 bits, and the same for all nodes at once."""

    def __init__(self, name: str, seed: int) -> None:
        learner = LEARNERS[DIGITS]
        data = learner.data(0)
        self.name, self.batch = name, learner.batch
        self.data = Data(data.inputs.double(), data.targets, data.nodes, data.held_out)
        self.model = learner.model(seed).double()
        self.optimizer = learner.optimizer(self.model)
        self.schedule = learner.schedule(self.optimizer)

    def chosen(self, step: int, name: str) -> torch.Tensor:
        own = self.data.nodes[int(name)]
        return own[torch.randint(len(own), (self.batch,), generator=torch.Generator().manual_seed(10 * step + int(name)))]

    def learn(self, step: int, names: tuple[str, ...]) -> None:
        learn(self.model, self.optimizer, self.data, torch.cat([self.chosen(step, name) for name in names]))
        self.schedule.step()

    def follow(self, desk, has_stepped: threading.Event, is_over) -> dict[int, tuple[str, ...]]:
        """Who contributed to the steps that this node took part in."""
        options = {"schedules": [self.schedule], "before_step": partial(limit, self.model), "options": OPTIONS}
        found: dict[int, tuple[str, ...]] = {}
        with Coordinator(self.model, self.optimizer, service=desk, job="job", worker=self.name, **options) as coordinator:
            while not is_over(list(found.values())):
                chosen, step = self.chosen(coordinator.step, self.name), coordinator.step
                loss(self.model, self.data.inputs[chosen], self.data.targets[chosen]).backward()
                found[step] = tuple(sorted(coordinator.update().weights))
                has_stepped.set()
            coordinator.request_node_exit()
        return found

    def flat(self) -> torch.Tensor:
        return torch.cat([parameter.detach().flatten() for parameter in self.model.parameters()])


def test_accuracy_is_the_share_of_right_answers():
    data = LEARNERS[DIGITS].data(0)

    class Right(torch.nn.Module):
        def forward(self, inputs):
            return torch.nn.functional.one_hot(data.targets[data.held_out], 10).float()

    assert accuracy(Right(), data) == 100.0
