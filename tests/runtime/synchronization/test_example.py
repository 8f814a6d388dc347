"""The example's own strategies do what they say; the example itself is run as a command of the documents."""

import functools
import importlib.util
from pathlib import Path

import pytest
import torch

from tests.runtime.synchronization.workers import adam, backward, crew, flat, is_equal, model_of

SIZE, NUM_STEPS = 2, 9


@pytest.fixture(scope="module")
def example():
    path = Path(__file__).parents[3] / "examples" / "adaptive_synchronization.py"
    spec = importlib.util.spec_from_file_location("adaptive_synchronization", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def trained(example, strategy):
    def main(rank, link):
        model = model_of(rank)
        optimizer = example.SynchronizedOptimizer(adam(model), strategy(), link.transport("all", rank, SIZE))
        while optimizer.num_steps < NUM_STEPS:
            backward(model, optimizer, optimizer.num_steps, rank, SIZE)
            optimizer.step()
        optimizer.finish()
        return model

    return crew(SIZE, main)


def put(vector, model) -> None:
    torch.nn.utils.vector_to_parameters(vector.clone(), model.parameters())


def test_local_sgd_is_what_its_paper_writes(example):
    models = [model_of() for _ in range(SIZE)]
    optimizers = [adam(model) for model in models]
    for step in range(NUM_STEPS):
        for rank in range(SIZE):
            backward(models[rank], optimizers[rank], step, rank, SIZE)
        if step % 4 == 0:
            mean = sum(map(flat, models)) / SIZE
            for model in models:
                put(mean, model)
        for optimizer in optimizers:
            optimizer.step()
    found = trained(example, lambda: example.LocalSGD(every_steps=4))
    assert is_equal(found)
    assert torch.allclose(flat(found[0]), sum(map(flat, models)) / SIZE, rtol=1e-9, atol=1e-12)


def test_lookahead_is_what_its_paper_writes(example):
    model = model_of()
    optimizer, slow = adam(model), flat(model)
    for step in range(NUM_STEPS):
        backward(model, optimizer, step)
        optimizer.step()
        if (step + 1) % 3 == 0:
            slow = slow.lerp(flat(model), 0.5)
            put(slow, model)
    found = trained(example, lambda: example.Lookahead(every_steps=3, slow_ratio=0.5))
    assert is_equal(found)
    assert torch.allclose(flat(found[0]), flat(model), rtol=1e-12, atol=1e-14)


def test_the_script_runs_with_one_worker_too(example, monkeypatch, capsys):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")  # as torchrun does
    alone = {"store": torch.distributed.HashStore(), "rank": 0, "world_size": 1}
    monkeypatch.setattr(example.dist, "init_process_group", functools.partial(torch.distributed.init_process_group, **alone))
    example.main()
    told = capsys.readouterr().out
    assert "from synchronous_sgd to pairwise_averaging, because step 40 is reached" in told
    assert "from local_sgd to synchronous_sgd" in told
    assert not torch.distributed.is_initialized()


def test_who_starts_it_without_torchrun_is_told_how(example, monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    with pytest.raises(SystemExit, match="start it by torchrun: "):
        example.main()
