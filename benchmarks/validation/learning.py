"""A job that can be learnt: a byte-level GPT on the help texts of Python's standard library, fp64."""

import math
import pydoc_data.topics
from functools import partial

import torch

from kintsugi.runtime.gpt import ByteText, GptShape, adamw, gpt_layers
from kintsugi.runtime.models import TrainingJob
from kintsugi.runtime.tokens import token_loss

SHAPE = GptShape(num_blocks=4, width=32, num_heads=4, sequence_length=64, dropout=0.01)
TEXT_BYTES = 6144
NUM_MICROBATCHES, MICROBATCH_SIZE = 4, 2
LEARNING_RATE, WARMUP_STEPS, LEAST_FACTOR = 3e-3, 50, 0.05


def help_text() -> bytes:
    """The first bytes of Python's help texts, topics in alphabetical order."""
    topics = pydoc_data.topics.topics
    return "\n".join(topics[name] for name in sorted(topics)).encode()[:TEXT_BYTES]


def learning_rate_factor(step: int, *, num_steps: int) -> float:
    """Linear warm-up, then half a cosine down to the least."""
    falling = 0.5 * (1.0 + math.cos(math.pi * step / num_steps))
    return min(1.0, (step + 1) / WARMUP_STEPS) * (LEAST_FACTOR + (1.0 - LEAST_FACTOR) * falling)


def help_job(num_steps: int) -> TrainingJob:
    """The job that both runs train."""
    return TrainingJob(
        layers=gpt_layers(SHAPE),
        optimizer=partial(adamw, learning_rate=LEARNING_RATE),
        loss=token_loss,
        dataset=ByteText(help_text(), SHAPE.sequence_length),
        microbatch_size=MICROBATCH_SIZE,
        num_microbatches=NUM_MICROBATCHES,
        num_steps=num_steps,
        max_grad_norm=1.0,
        learning_rate_factor=partial(learning_rate_factor, num_steps=num_steps),
        dtype=torch.float64,
    )
