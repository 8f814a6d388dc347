"""The curves of the churn benchmark are of exact data parallelism, over the nodes and data that are said to be there."""

import itertools

import torch

from benchmarks.convergence_churn import CHANGES, FOUR_EVENTS, MULTI_PARTY, ONE_OWNER, Run, report, shards
from benchmarks.learners import DIGITS, LEARNERS, LORA, NUM_NODES, LowRank, accuracy, loss


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
    assert f"| residual network, digits | multi-party | four events | {last} | 0.5 | +2.0, +2.0, +2.0, +2.0 |" in text
    assert f"| residual network, digits | multi-party | 4 nodes | {last} | 0.5 | none |" in text


def test_accuracy_is_the_share_of_right_answers():
    data = LEARNERS[DIGITS].data(0)

    class Right(torch.nn.Module):
        def forward(self, inputs):
            return torch.nn.functional.one_hot(data.targets[data.held_out], 10).float()

    assert accuracy(Right(), data) == 100.0
