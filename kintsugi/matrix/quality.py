"""What trained parameters are worth, on samples that no step was trained on."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from kintsugi.matrix.record import Quality
from kintsugi.runtime.models import Activations, Dataset, TrainingJob, collate, run_layer
from kintsugi.runtime.workers.state import ModelState

BATCH_SIZE = 64


@torch.no_grad()
def quality_of(job: TrainingJob, held_out: Dataset, parameters: Mapping[str, Tensor], *, target: str) -> Quality:
    """Mean loss, and the share of right predictions of the field `target`, over all held-out samples.

    Args:
        job: that was trained.
        held_out: samples of the same kind as its own.
        parameters: by canonical name; no layer has buffers.
        target: what the model's output, logits over the last dimension, predicts.
    """
    state = ModelState.initial(job, range(len(job.layers)))
    for name, parameter in state.parameters.items():
        parameter.copy_(parameters[name])
    loss, right, predictions = 0.0, 0, 0
    for indices in _batches(len(held_out)):
        batch = collate([held_out[index] for index in indices], "cpu")
        outputs: Activations = ()
        for index, layer in enumerate(job.layers):
            outputs = run_layer(layer, state.modules[index].eval(), outputs, batch)
        own = job.loss(outputs, batch)
        assert isinstance(own, Tensor)  # of workloads all are means
        loss += float(own) * len(indices)
        right += int((outputs[0].argmax(dim=-1) == batch[target]).sum())
        predictions += batch[target].numel()
    return Quality(held_out_loss=loss / len(held_out), held_out_accuracy=right / predictions)


def _batches(size: int) -> Sequence[range]:
    return [range(start, min(start + BATCH_SIZE, size)) for start in range(0, size, BATCH_SIZE)]
