"""What a failure costs: recovery in memory against restarts from blocking and overlapped checkpoints.

    python -m benchmarks.restarts [--repeats N] [--failures N]

One job of four workers (two pipelines of two stages, compute emulated by sleeping) is struck at the same steps under every
variant: a worker is killed and comes back; or the whole job is killed, as a failure kills a plain script, and its supervisor
starts it again. Every run is audited. Losses of goodput are against the run without failures of the same repeat. They hold for
this rate of failures: the job is short, and starting Python and torch is most of a restart.
"""

import argparse
import os
import signal
import sys
import time
from functools import partial

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.checkpoints import interval
from benchmarks.running import scratch, tell
from kintsugi.core.cluster import Cluster
from kintsugi.core.logs import warn_only
from kintsugi.core.profile import Device, LayerProfile, LinkCost, Network, Profile, Provenance, ProvenanceKind, Recovery
from kintsugi.runtime.checkpoints.recording import CheckpointOptions, Strategy
from kintsugi.runtime.control.agent import Agent
from kintsugi.runtime.emulation import EmulatedTimes, emulated_job
from kintsugi.runtime.models import TrainingJob
from kintsugi.runtime.records.audit import audit
from kintsugi.runtime.supervising.supervision import SupervisorPolicy, SupervisorState
from kintsugi.runtime.supervising.supervisor import Supervisor
from kintsugi.runtime.train import train

PASS_SECONDS = 0.004
NUM_LAYERS, NUM_MICROBATCHES = 4, 8
EVERY_STEPS = 10
VARIANTS = ("reference", "memory", "overlapped", "blocking")
TIMES = [EmulatedTimes(forward_seconds=PASS_SECONDS, backward_input_seconds=PASS_SECONDS, backward_weight_seconds=PASS_SECONDS)]


def job_of(num_steps: int) -> TrainingJob:
    return emulated_job(TIMES * NUM_LAYERS, num_microbatches=NUM_MICROBATCHES, num_steps=num_steps, width=64)


def profile() -> Profile:
    link = LinkCost(alpha_seconds=1e-4, beta_seconds_per_byte=1e-9)
    layer = partial(
        LayerProfile,
        forward_seconds=PASS_SECONDS,
        backward_input_seconds=PASS_SECONDS,
        backward_weight_seconds=PASS_SECONDS,
        optimizer_seconds=0.0,
        parameter_bytes=1024,
        gradient_bytes=1024,
        optimizer_bytes=1024,
        activation_bytes=1024,
        output_bytes=1024,
    )
    return Profile(
        name="emulated",
        microbatch_size=1,
        provenance=Provenance(kind=ProvenanceKind.ANALYTICAL, detail="emulated by sleeping"),
        layers=tuple(layer(name=f"layer{index}") for index in range(NUM_LAYERS)),
        device=Device(name="none", memory_bytes=10**9, reserved_bytes=0),
        network=Network(intra_host=link, inter_host=link),
        recovery=Recovery(regroup_seconds=0.05, restart_seconds=5.0),
    )


class Striker:
    """Strikes after each of `steps`: the last worker, which is invited back, or the whole job, once per attempt."""

    def __init__(self, steps: list[int], variant: str) -> None:
        self._steps = steps
        self._variant = variant
        self._num_struck = int(os.environ.get("KINTSUGI_ATTEMPT", "0"))
        self._worker = "w03"

    def __call__(self, agent: Agent) -> None:
        """Look, and strike where it is time."""
        if self._variant == "memory" and self._worker not in (*agent.alive, *agent.arriving):
            agent.invite(self._worker)
        if self._num_struck >= len(self._steps) or self._steps[self._num_struck] not in agent.losses:
            return
        if self._variant != "memory":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._worker in agent.alive:
            self._num_struck += 1
            agent.handle(self._worker).strike()


def child(folder: str, variant: str, num_steps: int, steps: list[int]) -> None:
    """One life of the job."""
    strategy = Strategy.BLOCKING if variant == "blocking" else Strategy.OVERLAPPED
    train(
        partial(job_of, num_steps),
        workers=Cluster.uniform(4),
        dp=2,
        pp=2,
        profile=profile(),
        run=folder,
        checkpoints=CheckpointOptions(every_steps=EVERY_STEPS, strategy=strategy),
        observer=None if variant == "reference" else Striker(steps, variant),
    )


def goodput(variant: str, num_steps: int, steps: list[int]) -> float:
    """Committed steps by wall time, start of the processes included; told at once."""
    with scratch() as folder:
        run = folder / "run"
        told = [str(run), variant, str(num_steps), ",".join(map(str, steps))]
        command = [sys.executable, "-m", "benchmarks.restarts", "--child", *told]
        began = time.monotonic()
        record = Supervisor(command=command, run=run, policy=SupervisorPolicy(pause_seconds=0.0)).supervise()
        wall = time.monotonic() - began
        report = audit(run)
        if record.state is not SupervisorState.COMPLETED or not (report.is_exact and report.is_complete):
            raise SystemExit(f"{variant}: {record.stopped_because or report.problems}")
    tell(variant, f"{num_steps / wall:.3f} steps/s")
    return num_steps / wall


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--num-steps", type=int, default=80)
    parser.add_argument("--failures", type=int, default=2)
    given = parser.parse_args()
    if given.child:
        folder, variant, num_steps, steps = given.child
        child(folder, variant, int(num_steps), [int(step) for step in steps.split(",")])
        return
    warn_only()
    strikes = [(index + 1) * given.num_steps // (given.failures + 1) + EVERY_STEPS // 2 for index in range(given.failures)]
    rows = [[goodput(variant, given.num_steps, strikes) for variant in VARIANTS] for _ in range(given.repeats)]
    table = Table("variant", "steps/s", "goodput against no failures")
    for index, variant in enumerate(VARIANTS):
        table.add_row(
            variant, f"{np.median([row[index] for row in rows]):.3f}", interval([row[index] / row[0] - 1 for row in rows])
        )
    Console().print(f"struck after steps {strikes} of {given.num_steps}; audit exact and complete in all {4 * given.repeats} runs")
    Console().print(table)
    memory, restarts = (float(np.median([1 - row[index] / row[0] for row in rows])) for index in (1, 2))
    if memory > 0:
        Console().print(f"loss by restarts (overlapped) over loss in memory: {restarts / memory:.1f} times")
    else:
        Console().print(f"loss by restarts (overlapped): {restarts:.1%}; in memory it is smaller than what repeats differ by")


if __name__ == "__main__":
    main()
