"""Models of published size on a device: their profiles, recomputation, and what precision costs."""

from dataclasses import replace

import pytest
import torch

from kintsugi.runtime.devices import job_on
from kintsugi.runtime.gpt import gpt2_medium_job
from kintsugi.runtime.llama import llama2_7b_job, llama3_8b_job, llama_job
from kintsugi.runtime.measuring.selection import distinct_layers
from kintsugi.runtime.measuring.sweeper import Sweeper
from kintsugi.runtime.models import collate, train_layer
from kintsugi.runtime.optimizer_state import load_exactly
from kintsugi.runtime.workers.state import ModelState
from tests.gpu.devices import DEVICE, needs_cuda
from tests.runtime.jobs import TINY_LLAMA, tiny_gpt

pytestmark = needs_cuda


@pytest.mark.large
@pytest.mark.parametrize("make_job", [llama2_7b_job, llama3_8b_job, gpt2_medium_job])
def test_the_distinct_layers_of_large_models_are_measured(make_job):
    selection = distinct_layers(job_on(make_job, DEVICE, torch.bfloat16))
    sweeper = Sweeper(selection.job)
    samples = sweeper.warmed_up()
    sweeper.sweep(samples)
    assert len(samples) == 3
    assert all(min(sample.device.forward) > 0 and min(sample.device.backward) > 0 for sample in samples)
    assert all(12 <= sample.optimizer_bytes / (sample.parameter_bytes / 2) < 12.1 for sample in samples)


@pytest.mark.parametrize("is_split", [False, True])
def test_recomputed_gradients_are_bitwise_those_without_dropout_included(is_split):
    found = []
    for recomputes in (False, True):
        job = replace(job_on(tiny_gpt, DEVICE, None), recomputes_activations=recomputes)
        state = ModelState.initial(job, range(len(job.layers)))
        batch = collate([job.dataset[0], job.dataset[1]], DEVICE)
        values = ()
        for index, module in state.modules.items():
            values = train_layer(job, index, module, values, batch, step=0, microbatch=0)
        loss = job.loss(values, batch)
        if is_split:
            torch.autograd.grad(loss, list(state.parameters.values()), retain_graph=True)
        loss.backward()
        found.append({name: parameter.grad for name, parameter in state.parameters.items()})
    assert all(torch.equal(found[0][name], gradient) for name, gradient in found[1].items())


def test_exact_values_are_updated_on_the_device_with_their_counters_wherever_these_came_from():
    job = job_on(lambda: llama_job(TINY_LLAMA), DEVICE, None)
    state = ModelState.initial(job, [1])
    (optimizer,) = state.optimizers.values()
    for number in range(2):
        for parameter in state.parameters.values():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        for kept in optimizer.state.values():
            assert kept["step"].item() == number + 1
        told = optimizer.state_dict()
        for kept in told["state"].values():
            kept["step"] = kept["step"].cpu()
        load_exactly(optimizer, told)
