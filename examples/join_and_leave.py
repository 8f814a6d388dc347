"""Workers that join and leave a running job by themselves: four lines of a plain torch loop.

    kintsugi serve
    python examples/join_and_leave.py --worker clinic-a
    python examples/join_and_leave.py --worker clinic-b
    python examples/join_and_leave.py --worker clinic-c --neighbors clinic-a,clinic-b

A terminal each; they train until they are asked to leave. Each worker has data of its own. Ctrl-C (or SIGTERM, or the leave button
on the dashboard) makes one leave while the others go on; `kill -9` loses one, and the others go on, too. With `--data shared` all
read the same samples, dealt anew to whoever is there.
"""

import argparse
import sys
from collections.abc import Sequence

import torch
from torch import nn

import kintsugi
from kintsugi.runtime.overlay.data import PartySamples, SharedSamples

NUM_SAMPLES, NUM_FEATURES, NUM_CLASSES, BATCH_SIZE = 512, 16, 4, 32


def data(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points around four centres that are the same for all parties, [samples, features] and [samples]."""
    centres = torch.randn(NUM_CLASSES, NUM_FEATURES, generator=torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(NUM_CLASSES, (NUM_SAMPLES,), generator=generator)
    return centres[labels] + torch.randn(NUM_SAMPLES, NUM_FEATURES, generator=generator), labels


def main(arguments: Sequence[str]) -> None:
    """Train as one worker until asked to leave, or until step `--num-steps` of the job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--service", default="http://127.0.0.1:8000", help="the scheduler: kintsugi serve (%(default)s)")
    parser.add_argument("--job", default="clinics", help="the same for all that train together (%(default)s)")
    parser.add_argument("--worker", required=True, help="a name of its own within the job")
    parser.add_argument("--neighbors", default="", help="workers to link with, by commas; by default whoever is active")
    parser.add_argument("--data", choices=("own", "shared"), default="own", help="whose samples (%(default)s)")
    parser.add_argument("--num-steps", type=int, help="the job's step at which to leave; by default when asked to")
    asked = parser.parse_args(arguments)
    seed = sum(asked.worker.encode()) if asked.data == "own" else 0
    features, labels = data(seed)
    own = PartySamples(num_samples=NUM_SAMPLES, batch_size=BATCH_SIZE, seed=seed)
    shared = SharedSamples(num_samples=NUM_SAMPLES, batch_size=BATCH_SIZE)

    model = nn.Sequential(nn.Linear(NUM_FEATURES, 64), nn.ReLU(), nn.Linear(64, NUM_CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    neighbors = asked.neighbors.split(",") if asked.neighbors else None
    try:
        coordinator = kintsugi.Coordinator(
            model, optimizer, service=asked.service, job=asked.job, worker=asked.worker, neighbors=neighbors
        )
    except kintsugi.KintsugiError as error:
        sys.exit(f"{asked.worker} did not join: {error}")
    print(f"{asked.worker} joined at step {coordinator.step}", flush=True)
    while asked.num_steps is None or coordinator.step < asked.num_steps:
        step = coordinator.step
        mine = own.indices(step) if asked.data == "own" else shared.indices(step, coordinator.members, asked.worker)
        loss = nn.functional.cross_entropy(model(features[list(mine)]), labels[list(mine)])
        loss.backward()
        done = coordinator.update(weight=len(mine))
        coordinator.check_state_replication()
        print(f"{asked.worker} step {step} loss {loss.item():.4f} with {','.join(done.weights)}", flush=True)
        if coordinator.capture_exit_event():
            break
    digest = coordinator.digest()
    coordinator.request_node_exit()
    print(f"{asked.worker} left, its state {digest}", flush=True)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except kintsugi.GivenUpError as error:
        sys.exit(f"the others go on without this worker: {error}")
