"""Take the pictures of the dashboard in docs/: `scripts/make_screenshots [FOLDER]`.

Starts a service on a temporary database, tells it of some jobs and of what befell them, and photographs its pages in a
headless Chromium: the shell or the whole of it on the path, or what `KINTSUGI_CHROMIUM` names.
"""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kintsugi.cli.demo import service
from kintsugi.client import Client
from kintsugi.core import codec
from kintsugi.core.errors import InfeasibleError
from kintsugi.core.job import JobSettings, Ranges
from kintsugi.core.membership import Event, EventKind
from kintsugi.core.messages import Measurement, Report, ReportStatus
from kintsugi.core.plan import Policy
from kintsugi.core.profile import Profile
from tests.chromium import CHROMIUM, MISSING

if TYPE_CHECKING:
    from playwright.sync_api import Browser

MODELS = Path("profiles/models")
PHASES = ("detected", "planned", "quiesced", "regrouped", "transferred", "resumed", "first_step")
PICTURES = {
    "dashboard": ("/dashboard/jobs/llama2-7b", "#live"),
    "dashboard-schedule": ("/dashboard/jobs/llama2-7b/schedule", "#schedule[data-drawn]"),
}
"""Name of the file: the page, and what is there once the page is ready."""
SIZE = (1200, 900)


def profile(name: str) -> Profile:
    """A profile that comes with Kintsugi."""
    return codec.load(Profile, MODELS / f"{name}.json")


def settings(num_microbatches: int, *, dp: tuple[int, int], pp: tuple[int, int], policy: Policy | None = None) -> JobSettings:
    """Settings with the least and most of either degree."""
    ranges = Ranges(min_dp=dp[0], max_dp=dp[1], min_pp=pp[0], max_pp=pp[1])
    return JobSettings(num_microbatches=num_microbatches, ranges=ranges, policy=policy)


def strike(client: Client, job: str, kind: EventKind, worker: str, speed_ratio: float | None = None) -> int:
    """Report what befell a worker; the generation that answers it."""
    generation = client.plan(job, brief=True).generation
    event = Event(kind=kind, id=f"{kind}-{worker}", generation=generation, worker=worker, speed_ratio=speed_ratio)
    return client.post_event(job, event, brief=True).generation


def answer(client: Client, job: str, generation: int, *, error_ratio: float, phase_seconds: tuple[float, ...] = ()) -> None:
    """Report that a plan was applied, what its recovery took, and a step time so far above the estimate."""
    estimated = client.plan_at(job, generation, brief=True).decision.estimate.iteration_seconds
    phases = dict(zip(PHASES, phase_seconds, strict=False))
    client.report(job, Report(generation=generation, status=ReportStatus.APPLIED, measured=Measurement(phase_seconds=phases)))
    measured = Measurement(iteration_seconds=estimated * (1 + error_ratio), step=100 * (generation + 1))
    client.report(job, Report(generation=generation, status=ReportStatus.MEASURED, measured=measured))


def rerouted(client: Client) -> None:
    """Llama 2 7B on DP 8 x PP 4, two workers lost, their micro-batches rerouted; one worker is slow."""
    client.create_job(
        job="llama2-7b",
        profile=profile("llama2-7b.a100-80g"),
        workers=32,
        workers_per_host=4,
        settings=settings(128, dp=(8, 8), pp=(4, 4), policy=Policy.DATA_REROUTING),
    )
    answer(client, "llama2-7b", 0, error_ratio=0.021)
    first = strike(client, "llama2-7b", EventKind.WORKER_FAILED, "w06")
    answer(client, "llama2-7b", first, error_ratio=0.034, phase_seconds=(1.02, 1.03, 1.9, 3.4, 3.4, 3.7, 9.8))
    strike(client, "llama2-7b", EventKind.WORKER_FAILED, "w21")


def reshaped(client: Client) -> None:
    """GPT-2 medium on DP 2 x PP 3: a worker is lost and pipelines become asymmetric."""
    client.create_job(
        job="gpt2-demo",
        profile=profile("gpt2-medium.a100-80g"),
        workers=6,
        settings=settings(12, dp=(2, 2), pp=(2, 3)),
    )
    answer(client, "gpt2-demo", 0, error_ratio=-0.012)
    generation = strike(client, "gpt2-demo", EventKind.WORKER_FAILED, "w04")
    answer(client, "gpt2-demo", generation, error_ratio=0.018, phase_seconds=(0.4, 0.41, 0.9, 1.6, 2.3, 2.4, 2.8))


def spared(client: Client) -> None:
    """GPT-2 medium with two spare workers: one takes a lost worker's place; another worker runs slowly."""
    client.create_job(
        job="gpt2-spares",
        profile=profile("gpt2-medium.a100-80g"),
        workers=14,
        workers_per_host=2,
        settings=settings(24, dp=(4, 4), pp=(3, 3)),
    )
    answer(client, "gpt2-spares", 0, error_ratio=0.01)
    strike(client, "gpt2-spares", EventKind.STRAGGLER, "w11", speed_ratio=0.8)
    generation = strike(client, "gpt2-spares", EventKind.WORKER_FAILED, "w05")
    answer(client, "gpt2-spares", generation, error_ratio=0.05, phase_seconds=(0.4, 0.41, 0.8, 1.3, 1.9, 2.0, 2.4))


def stranded(client: Client) -> None:
    """Llama 2 7B on so few workers that no plan is left after a loss."""
    client.create_job(
        job="llama2-7b-stranded",
        profile=profile("llama2-7b.a100-80g"),
        workers=5,
        settings=settings(8, dp=(1, 1), pp=(4, 4)),
    )
    strike(client, "llama2-7b-stranded", EventKind.WORKER_FAILED, "w02")
    try:
        strike(client, "llama2-7b-stranded", EventKind.WORKER_FAILED, "w03")
    except InfeasibleError:
        return


def large(client: Client) -> None:
    """Llama 3 405B on 256 workers of eight devices each: one is lost."""
    client.create_job(
        job="llama3-405b",
        profile=profile("llama3-405b.h100-80g-tp8"),
        workers=256,
        settings=settings(512, dp=(8, 8), pp=(32, 32)),
    )
    strike(client, "llama3-405b", EventKind.WORKER_FAILED, "w37")


def tell_all(client: Client) -> None:
    """Every job of the pictures."""
    for befall in (rerouted, reshaped, spared, stranded, large):
        befall(client)


@contextmanager
def browser() -> Iterator["Browser"]:
    """A headless Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield chromium
        finally:
            chromium.close()


def main(folder: Path) -> None:
    """Write the pictures to `folder`."""
    with tempfile.TemporaryDirectory() as database, service(Path(database)) as url, Client(url) as client:
        tell_all(client)
        with browser() as chromium:
            page = chromium.new_page(viewport={"width": SIZE[0], "height": SIZE[1]}, color_scheme="light")
            for name, (path, sign) in PICTURES.items():
                page.goto(url + path)
                page.locator(sign).wait_for()
                page.screenshot(path=folder / f"{name}.png")


if __name__ == "__main__":
    if CHROMIUM is None:
        sys.exit(f"make_screenshots: {MISSING}")
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs"))
