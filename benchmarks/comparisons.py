"""What comparing the state of replicas in every step costs: steps with a comparison beside steps without one, in turn.

    python -m benchmarks.comparisons [--num-steps N] [--width N] [--micro-batches N]

Two workers hold all layers of a decoder, and compare in every second step of one run; the ratio is that of the medians. Beside it:
how fast a layer's digest is made, against its optimizer's update and against a plain sum of as much memory.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterable
from functools import partial

import torch

import kintsugi
from benchmarks.running import tell
from kintsugi.runtime.gpt import GptShape, gpt_job
from kintsugi.runtime.models import TrainingJob
from kintsugi.runtime.options import AgentOptions, WorkerOptions
from kintsugi.runtime.workers.replicas import state_digest
from kintsugi.runtime.workers.state import ModelState


def job_of(width: int, num_microbatches: int, num_steps: int) -> TrainingJob:
    """A decoder of four blocks in 32 bits."""
    shape = GptShape(num_blocks=4, width=width, num_heads=width // 64, sequence_length=128)
    return gpt_job(num_microbatches=num_microbatches, num_steps=num_steps, shape=shape, dtype=torch.float32)


def step_seconds(make_job: Callable[[], TrainingJob]) -> tuple[list[float], list[float]]:
    """Of steps with and without a comparison; the first ones are left out."""
    options = AgentOptions(worker=WorkerOptions(compare_every_steps=2))
    seconds = kintsugi.train(make_job, workers=2, dp=2, pp=1, options=options).step_seconds[4:]
    return list(seconds[::2]), list(seconds[1::2])


def digest_seconds(job: TrainingJob, repeats: int = 15) -> tuple[float, float, float, int]:
    """Median seconds for digests of all layers, for an update, and for a sum over as much memory; the bytes of the state."""
    state = ModelState.initial(job, range(len(job.layers)))
    for parameter in state.parameters.values():
        parameter.grad = torch.zeros_like(parameter)
    state.update(0)
    num_bytes = 3 * sum(parameter.nbytes for parameter in state.parameters.values())  # with the two moments
    memory = torch.zeros(num_bytes // 8, dtype=torch.int64)
    digests = partial(_each, partial(state_digest, state), state.modules)
    calls: tuple[Callable[[], object], ...] = (digests, partial(state.update, 1), memory.sum)
    taken: list[list[float]] = [[] for _ in calls]
    for _ in range(repeats):
        for call, seconds in zip(calls, taken, strict=True):
            began = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - began)
    digest, update, plain = map(statistics.median, taken)
    return digest, update, plain, num_bytes


def _each(call: Callable[[int], object], numbers: Iterable[int]) -> None:
    for number in numbers:
        call(number)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-steps", type=int, default=64, help="of the run")
    parser.add_argument("--width", type=int, default=512, help="of the decoder, a multiple of 64")
    parser.add_argument("--micro-batches", type=int, default=2, help="of a step, for both workers")
    arguments = parser.parse_args()
    make_job = partial(job_of, arguments.width, arguments.micro_batches, arguments.num_steps)
    torch.set_num_threads(1)
    digest, update, plain, num_bytes = digest_seconds(make_job())
    tell(f"state of {num_bytes / 1e6:.0f} MB: digest {digest * 1e3:.2f} ms ({num_bytes / digest / 1e9:.1f} GB/s)")
    tell(f"over an update {digest / update:.3f}, over a plain sum of as much memory {digest / plain:.2f}")
    compared, others = step_seconds(make_job)
    with_one, without = statistics.median(compared), statistics.median(others)
    print(
        f"steps with a comparison {with_one * 1e3:.1f} ms, without {without * 1e3:.1f} ms (medians of {len(compared)} and "
        f"{len(others)}): {with_one / without - 1:+.2%}"
    )


if __name__ == "__main__":
    main()
