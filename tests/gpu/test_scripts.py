"""Models that scripts hold on a device: overlays, synchronized optimizers and plain runs treat them as on processors."""

import random

import pytest
import torch

from kintsugi.runtime.synchronization import ModelAveraging, PairwiseAveraging, SynchronizedOptimizer, SynchronousSGD
from tests.gpu.devices import DEVICE, needs_cuda
from tests.runtime.overlay.crew import Crew, perceptron
from tests.runtime.overlay.test_churn import check
from tests.runtime.synchronization.workers import adam, crew, flat, is_equal, model_of, train_step
from tests.runtime.test_plain import trained as trained_plainly

pytestmark = needs_cuda

NUM_STEPS = 6


def perceptron_on_the_device():
    model, optimizer = perceptron()
    return model.to(DEVICE), optimizer


def test_an_overlays_worker_is_lost_and_another_joins():
    members = Crew(build=perceptron_on_the_device)
    members.start_connected("a", "b", "c")
    members.members["b"].strike()
    members.members["a"].await_steps(members.members["a"].num_steps + 2)
    members.start("d", ("a", "c")).await_steps(3)
    members.finish()
    check(members)
    assert next(members.members["d"].model.parameters()).device == torch.device(DEVICE)


@pytest.mark.parametrize("strategy", [SynchronousSGD, ModelAveraging, PairwiseAveraging])
def test_replicas_on_the_device_are_kept_together(strategy):
    def trained(device):
        def main(rank, link):
            model = model_of().to(device)
            optimizer = SynchronizedOptimizer(adam(model), strategy(), link.transport("all", rank, 2), bucket_bytes=300)
            while optimizer.num_steps < NUM_STEPS:
                train_step(model, optimizer, optimizer.num_steps, rank, 2)
            optimizer.finish()
            return model

        return crew(2, main)

    models = trained(DEVICE)
    assert is_equal(models)
    assert next(models[0].parameters()).device == torch.device(DEVICE)
    if strategy is not PairwiseAveraging:  # whose order of exchanges is that of the moment
        assert torch.allclose(flat(models[0]).cpu(), flat(trained("cpu")[0]), rtol=1e-9, atol=1e-12)


def test_a_plain_run_goes_on_bit_for_bit(tmp_path):
    random.seed(4)
    whole, losses = trained_plainly(tmp_path / "whole", 9, device=DEVICE)
    random.seed(4)
    _, before = trained_plainly(tmp_path / "run", 7, device=DEVICE)
    random.seed(5)
    resumed, after = trained_plainly(tmp_path / "run", 9, device=DEVICE)
    assert [*before[:6], *after] == losses
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name
