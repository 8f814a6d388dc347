"""A campaign of faults against real jobs: real workers, a real service, on loopback alone.

    python -m benchmarks.chaos [FILE] [--run NAME]... [--svg PICTURE]

FILE is a campaign as JSON (`benchmarks/campaigns/short.json` by default); its fields are described in
`benchmarks.trouble.campaign`. In short:

    {"schema_version": 1, "name": "short", "seed": 0, "num_steps": 20000,
     "runs": [{"name": "six", "dp": 2, "pp": 3,
               "strikes": [{"kind": "kill", "at": "backward", "repeat": 5},
                           {"kind": "freeze", "at": "forward", "then": [{"kind": "kill", "at": "transfer"}]},
                           {"kind": "service", "then": [{"kind": "kill", "at": "commit"}]},
                           {"kind": "join"}]}]}

Every run trains one job from its first step until its strikes are over; workers that were lost come back, get their state
from the others, and may be struck again. An uninterrupted run with as many steps is trained then. Each run's row is printed
when it is done, then how long recoveries took. Exits with 1 when any of these is not 0: wrong steps (loss or parameters
beside the uninterrupted run, fp64), hung jobs, lost samples (a committed step counts every micro-batch once, and no step is
missing), orphaned processes, strikes that did not come to their end or generations that are missing, growth beyond what
the campaign allows; 2 for a bad file.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console

from benchmarks.running import scratch
from benchmarks.trouble.campaign import Campaign, Run, load
from benchmarks.trouble.report import JOIN, RunReport, cells_of, draw, growth_of, phase_table
from benchmarks.trouble.service import ServiceProcess, service_process
from benchmarks.trouble.striker import Striker
from benchmarks.trouble.witness import HungError, Witness, orphans
from kintsugi.client import Client
from kintsugi.core.cluster import Cluster
from kintsugi.core.errors import InvalidInputError, KintsugiError
from kintsugi.core.job import JobSettings, Ranges
from kintsugi.core.membership import Event, EventKind
from kintsugi.core.profile import LinkCost, Profile
from kintsugi.runtime.gpt import GptShape, gpt_job
from kintsugi.runtime.measuring.profiler import profile_job
from kintsugi.runtime.models import TrainingJob
from kintsugi.runtime.options import AgentOptions, WorkerOptions
from kintsugi.runtime.records.compare import difference
from kintsugi.runtime.result import RunResult
from kintsugi.runtime.train import train

DEFAULT = Path(__file__).parent / "campaigns" / "short.json"
OPTIONS = AgentOptions(
    worker=WorkerOptions(operation_timeout_seconds=15.0), heartbeat_timeout_seconds=60.0, quiesce_timeout_seconds=60.0
)
"""A message that a dead worker had sent in part holds a thread until 15 s are over; steps of these jobs take a hundredth of it.

Whoever a campaign freezes is stopped, which the process table tells at once; mere silence is that of a machine with too much to do.
"""
NUM_BLOCKS = 6
END_SECONDS = 10.0
"""For the last process of a run to be gone."""


def job_of(campaign: Campaign, num_steps: int) -> "partial[TrainingJob]":
    """What is trained; a step is the same whatever follows it."""
    shape = GptShape(num_blocks=NUM_BLOCKS, width=campaign.width)
    return partial(gpt_job, num_microbatches=campaign.num_microbatches, num_steps=num_steps, shape=shape)


def profile_of(campaign: Campaign, num_workers: int) -> Profile:
    """Measured sizes; times that are the same on every machine, so that plans do not depend on how busy this one is."""
    measured = profile_job(job_of(campaign, campaign.num_steps), name="chaos", num_workers=num_workers)
    link = LinkCost(alpha_seconds=1e-5, beta_seconds_per_byte=1e-10)
    return replace(
        measured,
        layers=tuple(
            replace(layer, forward_seconds=0.01, backward_input_seconds=0.01, backward_weight_seconds=0.01, optimizer_seconds=0.0)
            for layer in measured.layers
        ),
        network=replace(measured.network, intra_host=link, inter_host=link),
        recovery=replace(measured.recovery, detect_seconds=0.1, regroup_seconds=0.1),
    )


def warm(campaign: Campaign, profile: Profile, service: ServiceProcess) -> None:
    """Have the service decide once: with its first decision it loads the planner's machine code, and that is no growth."""
    settings = JobSettings(num_microbatches=campaign.num_microbatches)
    with Client(service.url) as client:
        view = client.create_job(job=f"{campaign.name}-warm", profile=profile, workers=4, settings=settings)
        worker = view.decision.plan.workers[0]
        client.post_event(view.summary.id, Event(kind=EventKind.WORKER_FAILED, id="warm", generation=0, worker=worker))


def uninterrupted(campaign: Campaign, profile: Profile, num_steps: int) -> RunResult:
    """So many steps on one worker, and nothing strikes."""
    return train(job_of(campaign, num_steps), workers=1, dp=1, pp=1, profile=profile, options=OPTIONS)


def play(campaign: Campaign, run: Run, *, profile: Profile, service: ServiceProcess, console: Console) -> RunReport:
    """One run under its strikes."""
    report = RunReport(name=run.name, num_workers=run.dp * run.pp)
    striker = Striker(run, campaign.seed, service)
    witness = Witness(campaign, run, striker, service, console)
    try:
        result = train(
            job_of(campaign, campaign.num_steps),
            workers=Cluster.uniform(run.dp * run.pp, workers_per_host=run.workers_per_host),
            dp=run.dp,
            pp=run.pp,
            ranges=Ranges(min_dp=2, max_dp=run.dp),
            name=f"{campaign.name}-{run.name}",
            profile=profile,
            service=service.url,
            policy=run.policy,
            options=OPTIONS,
            observer=witness,
        )
        judge(report, campaign, witness.num_steps, result, uninterrupted(campaign, profile, len(result.losses)))
    except HungError as error:
        report.hung, report.error = 1, str(error)
    except KintsugiError as error:
        report.error = f"{type(error).__name__}: {error}"
    finally:
        striker.close()
    report.orphans = orphans(witness.processes, END_SECONDS)
    report.num_generations = witness.generation
    report.num_faults = striker.num_faults
    report.missing = striker.num_left + max(0, run.min_generations - witness.generation)
    report.missed = striker.num_missed
    labelled = enumerate(witness.recoveries)
    report.recoveries = [(striker.labels.get(place, "?") if own.lost else JOIN, own) for place, own in labelled]
    report.growth = growth_of(witness.growths)
    return report


def judge(report: RunReport, campaign: Campaign, num_committed: int, result: RunResult, reference: RunResult) -> None:
    """Compare a run's steps, samples and parameters with those of an uninterrupted one of as many steps.

    Args:
        report: learns what is wrong.
        campaign: says what still counts as equal.
        num_committed: steps that were seen to be committed.
        result: of the run.
        reference: of the uninterrupted one.
    """
    pairs = zip(result.losses, reference.losses, strict=True)
    wrong = sum(abs(mine - other) > campaign.tolerance_ratio * abs(other) for mine, other in pairs)
    missing = max(0, num_committed - len(result.losses))
    once = (1,) * campaign.num_microbatches
    report.num_steps = len(result.losses)
    report.lost_samples = missing * campaign.num_microbatches + sum(
        sum(mine != own for mine, own in zip(counts, once, strict=True)) for counts in result.microbatches
    )
    found = difference(result, reference)
    report.largest_difference = max(found.loss_ratio, found.parameter_ratio)
    report.wrong_steps = wrong + (not found.is_within(campaign.tolerance_ratio))


def show(reports: Sequence[RunReport], picture: Path | None) -> None:
    """The phases of all recoveries."""
    width = max(Console().width, 190)
    Console(width=width).print(phase_table(reports, OPTIONS.stopped_timeout_seconds))
    if picture is not None and cells_of(reports):
        draw(reports, picture)
        print(f"picture: {picture}")


def main() -> int:
    """Play a campaign; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?", default=DEFAULT, help="the campaign")
    parser.add_argument("--run", action="append", help="play this run only; may be repeated")
    parser.add_argument("--svg", type=Path, help="draw the phases of all recoveries into this file")
    arguments = parser.parse_args()
    console = Console(stderr=True, soft_wrap=True)
    try:
        campaign = load(arguments.file)
        runs = chosen(campaign, arguments.run)
    except InvalidInputError as error:
        console.print(f"{arguments.file}: {error}", markup=False)
        return 2
    console.print(f"{campaign.name}: {len(runs)} runs, {sum(run.num_faults for run in runs)} faults and joins beside")
    reports = []
    with scratch() as folder, service_process(folder) as service:
        profile = profile_of(campaign, runs[0].dp * runs[0].pp)
        warm(campaign, profile, service)
        for run in runs:
            reports.append(play(campaign, run, profile=profile, service=service, console=console))
            print(reports[-1].line(campaign.growth), flush=True)
    show(reports, arguments.svg)
    num_failures = sum(report.num_failures(campaign.growth) for report in reports)
    num_faults = sum(count for report in reports for kind, count in report.num_faults.items())
    print(f"{num_faults} faults and joins, {num_failures} things that must not be")
    return int(num_failures > 0)


def chosen(campaign: Campaign, names: Sequence[str] | None) -> list[Run]:
    """The runs asked for.

    Raises:
        InvalidInputError: the campaign has no run of a name.
    """
    known = {run.name: run for run in campaign.runs}
    for name in names or ():
        if name not in known:
            raise InvalidInputError(f"no such run; the campaign has {', '.join(known)}", field="--run", value=name)
    return [run for run in campaign.runs if not names or run.name in names]


if __name__ == "__main__":
    sys.exit(main())
