"""Strategies keep real replicas together: over gloo groups and connections of their own, with threads as workers."""

import contextlib
import threading

import pytest
import torch

from kintsugi.core.errors import InvalidInputError
from kintsugi.runtime.synchronization import (
    ModelAveraging,
    PairwiseAveraging,
    PeerTransport,
    Strategy,
    SynchronizedOptimizer,
    SynchronousSGD,
)
from kintsugi.runtime.synchronization.caching import ModelCache, cached_model
from kintsugi.runtime.synchronization.exchange import Kind
from tests.core.refusals import refuses
from tests.runtime.synchronization.workers import adam, backward, crew, flat, is_equal, model_of, samples, train_step

NUM_STEPS = 12


def alone(num_steps: int = NUM_STEPS):
    model = model_of()
    optimizer = adam(model)
    losses = [train_step(model, optimizer, step) for step in range(num_steps)]
    return model, losses


def trained(strategy, size: int = 3, num_steps: int = NUM_STEPS, *, optimizer=adam, **options):
    """The models of workers that each train on their share of every batch."""

    def main(rank, link):
        model = model_of(rank)
        synchronized = SynchronizedOptimizer(
            optimizer(model), strategy(), link.transport("all", rank, size), bucket_bytes=300, **options
        )
        while synchronized.num_steps < num_steps:
            train_step(model, synchronized, synchronized.num_steps, rank, size)
        synchronized.finish()
        return model

    return crew(size, main)


def loss_of(model) -> float:
    inputs, targets = samples()
    return float((model(inputs) - targets).square().mean().detach())


@pytest.mark.parametrize("size", [1, 2, 3])
def test_synchronous_sgd_computes_what_one_worker_computes(size):
    models = trained(SynchronousSGD, size)
    assert is_equal(models)
    assert torch.allclose(flat(models[0]), flat(alone()[0]), rtol=1e-12, atol=1e-14)


def test_the_gradient_is_scaled_down_after_it_was_reduced():
    def limited(model):
        return torch.optim.SGD(model.parameters(), lr=0.5)

    models = trained(SynchronousSGD, 2, optimizer=limited, max_grad_norm=0.01)
    reference = model_of()
    optimizer = limited(reference)
    for step in range(NUM_STEPS):
        backward(reference, optimizer, step)
        torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.01)
        optimizer.step()
    assert torch.allclose(flat(models[0]), flat(reference), rtol=1e-12, atol=1e-14)


def test_gradients_of_several_backward_passes_are_reduced_once():
    def main(rank, link):
        model = model_of(rank)
        optimizer = SynchronizedOptimizer(adam(model), SynchronousSGD(), link.transport("all", rank, 2), num_backwards=2)
        inputs, targets = samples()
        for step in range(NUM_STEPS):
            optimizer.zero_grad()
            for half in range(2):
                chosen = [(step * 12 + index) % len(inputs) for index in range(12)][rank + 2 * half :: 4]
                ((model(inputs[chosen]) - targets[chosen]).square().mean() / 2).backward()
            optimizer.step()
        optimizer.finish()
        return model

    models = crew(2, main)
    assert is_equal(models)
    assert torch.allclose(flat(models[0]), flat(alone()[0]), rtol=1e-12, atol=1e-14)


def test_a_pass_too_many_is_refused():
    model = model_of()
    optimizer = SynchronizedOptimizer(adam(model), SynchronousSGD(), PeerTransport.alone())
    backward(model, optimizer, 0)
    with pytest.raises(InvalidInputError, match="num_backwards"):
        backward(model, optimizer, 1)
    optimizer.close()


def partly_trained(rank: int, size: int, wrapped) -> torch.nn.Module:
    """A parameter that the loss never sees, and a layer that is frozen after three steps, both with weight decay."""
    model = model_of()
    model.unused = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    optimizer = wrapped(torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1))
    for step in range(6):
        model[0].weight.requires_grad_(step < 3)
        inputs, targets = samples()
        optimizer.zero_grad()
        (model[:5](inputs[rank::size]) - targets[rank::size]).square().mean().backward()
        optimizer.step()
    return model


def test_a_parameter_that_has_a_gradient_on_no_worker_stays_as_it_is():
    def main(rank, link):
        transport = link.transport("all", rank, 2)
        made = []

        def wrapped(inner):
            made.append(SynchronizedOptimizer(inner, SynchronousSGD(), transport, bucket_bytes=300))
            return made[0]

        model = partly_trained(rank, 2, wrapped)
        made[0].finish()
        return model

    models, reference = crew(2, main), partly_trained(0, 1, lambda inner: inner)
    assert is_equal(models)
    assert torch.equal(models[0].unused, torch.ones(3, dtype=torch.float64))
    assert torch.allclose(flat(models[0]), flat(reference), rtol=1e-12, atol=1e-14)


def test_a_gradient_that_one_worker_alone_has_counts_as_zero_on_the_others():
    def main(rank, link):
        model = torch.nn.ParameterList([torch.zeros(2), torch.zeros(2)])
        optimizer = SynchronizedOptimizer(
            torch.optim.SGD(model.parameters(), lr=1.0), SynchronousSGD(), link.transport("all", rank, 2)
        )
        (model[0] + 3 * model[1] if rank == 1 else model[0]).sum().backward()
        optimizer.step()
        optimizer.finish()
        return model

    models = crew(2, main)
    assert is_equal(models)
    assert flat(models[0]).tolist() == [-1.0, -1.0, -1.5, -1.5]


def halved(parameter):
    parameter.grad = parameter.grad / 2


@pytest.mark.parametrize("bucket_bytes", [300, 2**20], ids=["several buckets", "one bucket"])
@pytest.mark.parametrize(
    "change",
    [
        lambda model: torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-6),
        lambda model: halved(model[4].bias),
        lambda model: model.zero_grad(),
    ],
    ids=["all in place", "one replaced", "all gone"],
)
def test_gradients_that_one_worker_changes_after_they_were_summed_are_refused_by_all(change, bucket_bytes):
    def main(rank, link):
        model = model_of()
        optimizer = SynchronizedOptimizer(adam(model), SynchronousSGD(), link.transport("all", rank, 2), bucket_bytes=bucket_bytes)
        train_step(model, optimizer, 0, rank, 2)
        before = flat(model)
        backward(model, optimizer, 1, rank, 2)
        if rank == 1:
            change(model)
        for _ in range(2):
            with refuses("gradients", fragment="by `max_grad_norm`, not in the script"):
                optimizer.step()
        optimizer.close()
        return torch.equal(before, flat(model))

    assert crew(2, main) == [True, True]


@pytest.mark.parametrize("num_sparse", [1, 2])
def test_sparse_gradients_of_any_worker_are_refused_by_all(num_sparse):

    def main(rank, link):
        table = torch.nn.Embedding(6, 2, sparse=rank < num_sparse)
        optimizer = SynchronizedOptimizer(
            torch.optim.SGD(table.parameters(), lr=0.1), SynchronousSGD(), link.transport("all", rank, 2)
        )
        before = flat(table)
        table(torch.tensor([rank, 2])).sum().backward()
        with refuses("gradients", fragment="a worker has sparse gradients, which are not summed"):
            optimizer.step()
        optimizer.close()
        return torch.equal(before, flat(table))

    assert crew(2, main) == [True, True]


def test_model_averaging_is_repeatable_and_ends_with_equal_replicas():
    first, again = trained(ModelAveraging), trained(ModelAveraging)
    assert is_equal(first)
    assert torch.equal(flat(first[0]), flat(again[0]))
    assert loss_of(first[0]) < loss_of(model_of())


def test_model_averaging_pulls_to_the_mean_and_then_steps():
    """The algorithm written out, for all workers in one loop."""
    size, pull = 2, 0.25
    models = [model_of() for _ in range(size)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    for step in range(4):
        mean = sum(flat(model) for model in models) / size
        for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            backward(model, optimizer, step, rank, size)
            moved = flat(model).lerp_(mean, pull)
            torch.nn.utils.vector_to_parameters(moved if step else flat(model), model.parameters())
            optimizer.step()
    expected = sum(flat(model) for model in models) / size

    def sgd(model):
        return torch.optim.SGD(model.parameters(), lr=0.1)

    found = trained(lambda: ModelAveraging(pull), size, num_steps=4, optimizer=sgd)
    assert torch.allclose(flat(found[0]), expected, rtol=1e-12)


@pytest.mark.parametrize("pull", [0.0, 1.5])
def test_a_pull_outside_of_its_range_is_refused(pull):
    with pytest.raises(InvalidInputError, match="pull_ratio"):
        ModelAveraging(pull)


def test_pairwise_averaging_learns_and_ends_with_equal_replicas():
    def faster(model):
        return torch.optim.Adam(model.parameters(), lr=0.03)

    models = trained(PairwiseAveraging, 4, num_steps=60, optimizer=faster)
    assert is_equal(models)
    assert loss_of(models[0]) < 0.8 * loss_of(model_of())


def test_every_worker_takes_part_in_averages():
    """Half of the workers only answer: the others go on until these have taken part, too."""
    reached = [0] * 4

    def main(rank, link):
        model, strategy = model_of(rank), PairwiseAveraging()
        optimizer = SynchronizedOptimizer(adam(model), strategy, link.transport("all", rank, 4))
        while min(reached) < 3 or optimizer.num_steps < 10:
            train_step(model, optimizer, optimizer.num_steps, rank, 4)
            reached[rank] = strategy.num_averaged
        optimizer.finish()

    crew(4, main)
    assert min(reached) >= 3


def test_averages_in_pairs_keep_the_sum_of_all_models():
    """Whatever the order, and while both sides add to their models."""
    size, rounds = 4, 25

    def main(rank, link):
        transport = link.transport("all", rank, size)
        cache = ModelCache(torch.full((1000,), float(rank), dtype=torch.float64))
        transport.serve(cache.answer)
        transport.begin_sum(torch.zeros(1)).wait()
        for turn in range(rounds):
            with cache.held() as model:
                model.add_(1.0)
            if rank % 2 == 0:
                assert cache.average_with(transport, 1 + 2 * ((turn + rank) % 2))
        transport.begin_sum(torch.zeros(1)).wait()
        transport.serve(None)
        with cache.held() as model:
            total = transport.begin_sum(model.clone()).wait()
        transport.close()
        return total

    for total in crew(size, main):
        assert torch.allclose(total, torch.full_like(total, sum(range(size)) + size * rounds), rtol=1e-12)


def test_a_cached_model_is_read_by_others_and_refused_where_there_is_none():
    def main(rank, link):
        transport = link.transport("all", rank, 2)
        like = torch.zeros(5)
        if rank == 1:
            transport.serve(ModelCache(torch.arange(5.0)).answer)
        transport.begin_sum(torch.zeros(1)).wait()
        read = cached_model(transport, 1 - rank, like)
        transport.begin_sum(torch.zeros(1)).wait()
        transport.close()
        return read

    read, refused = crew(2, main)
    assert torch.equal(read, torch.arange(5.0))
    assert refused is None


def test_a_model_of_another_size_is_refused():
    cache = ModelCache(torch.zeros(5))
    assert cache.answer(Kind.AVERAGE, memoryview(bytearray(8))) is None
    assert cache.num_averaged == 0


def test_the_learning_rate_may_be_a_function_of_the_step():
    models = trained(SynchronousSGD, 2, learning_rate=lambda step: 0.02 / (1 + step))
    reference = model_of()
    optimizer = adam(reference)
    for step in range(NUM_STEPS):
        optimizer.param_groups[0]["lr"] = 0.02 / (1 + step)
        train_step(reference, optimizer, step)
    assert torch.allclose(flat(models[0]), flat(reference), rtol=1e-12, atol=1e-14)


def test_names_of_strategies_are_told_apart():
    mixed = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1)), torch.nn.Parameter(torch.zeros(1).double())], lr=0.1)
    with contextlib.closing(PeerTransport.alone()) as alone:
        with pytest.raises(InvalidInputError, match="strategy"):
            SynchronizedOptimizer(adam(model_of()), [SynchronousSGD(), SynchronousSGD()], alone)
        with pytest.raises(InvalidInputError, match="one type"):
            SynchronizedOptimizer(mixed, SynchronousSGD(), alone)


class LocalSGD(Strategy):
    """A user's own: models are averaged every so many steps."""

    name = "local_sgd"

    def __init__(self, every_steps: int) -> None:
        self._every_steps = every_steps

    def step(self, replica) -> None:
        is_due = replica.num_steps > 0 and replica.num_steps % self._every_steps == 0
        replica.apply(model=replica.mean_model() if is_due else None)


def test_a_strategy_of_a_users_own_takes_a_dozen_lines():
    size, every = 3, 4
    models = [model_of() for _ in range(size)]
    optimizers = [adam(model) for model in models]
    for step in range(NUM_STEPS):
        for rank in range(size):
            backward(models[rank], optimizers[rank], step, rank, size)
        if step and step % every == 0:
            mean = sum(flat(model) for model in models) / size
            for model in models:
                torch.nn.utils.vector_to_parameters(mean.clone(), model.parameters())
        for optimizer in optimizers:
            optimizer.step()
    expected = sum(flat(model) for model in models) / size
    found = trained(lambda: LocalSGD(every), size)
    assert is_equal(found)
    assert torch.allclose(flat(found[0]), expected, rtol=1e-9, atol=1e-12)


def test_threads_end_with_the_training():
    before = set(threading.enumerate())
    trained(PairwiseAveraging, 2)
    for thread in set(threading.enumerate()) - before:
        thread.join(120.0)
        assert not thread.is_alive(), thread.name
