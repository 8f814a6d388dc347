"""What the dashboard shows in a real browser, and whoever looks at it."""

from urllib.parse import urlsplit

import pytest

from kintsugi.core.errors import InfeasibleError
from kintsugi.core.job import JobSettings, Ranges
from kintsugi.core.membership import Event, EventKind
from kintsugi.core.messages import Measurement, Report, ReportStatus
from kintsugi.core.plan import Policy
from tests.builders import uniform_profile
from tests.planner.overlay.world import mesh

PATIENCE_MILLISECONDS = 120_000
HOME = "/dashboard/jobs/rerouted"
OVERLAY = "/dashboard/jobs/hospitals/overlay"
PAGES = ("/dashboard", HOME, OVERLAY, f"{HOME}/schedule", f"{HOME}/why", f"{HOME}/history", f"{HOME}/whatif?fail=w00&slow=w02")
LARGE, STRANDED = "/dashboard/jobs/large", "/dashboard/jobs/stranded"
PHONE = {"width": 360, "height": 740}
CUT = "(elements) => elements.filter((each) => each.scrollWidth > each.clientWidth + 1).map((each) => each.textContent)"
"""Of elements, those whose text does not fit: by more than the fractions of a pixel to which widths are rounded."""


def lose(client, job, worker):
    generation = client.plan(job, brief=True).generation
    return client.post_event(
        job, Event(kind=EventKind.WORKER_FAILED, id=f"{worker}-{generation}", generation=generation, worker=worker)
    )


def grid_of(num_microbatches, dp, pp, policy=None):
    ranges = Ranges(min_dp=dp, max_dp=dp, min_pp=pp, max_pp=pp)
    return JobSettings(num_microbatches=num_microbatches, ranges=ranges, policy=policy)


def tell(client):
    """A job with rerouted work and a recovery, one of 256 workers, and one that is left without a plan."""
    profile = uniform_profile(16)
    client.create_job(
        job="rerouted", profile=profile, workers=9, workers_per_host=2, settings=grid_of(12, 4, 2, Policy.DATA_REROUTING)
    )
    lose(client, "rerouted", "w03")
    measured = Measurement(
        iteration_seconds=0.9, phase_seconds={"detected": 0.4, "planned": 0.42, "resumed": 1.5, "first_step": 2.5}
    )
    client.report("rerouted", Report(generation=1, status=ReportStatus.APPLIED, measured=measured))
    client.create_job(job="large", profile=profile, workers=256, settings=grid_of(64, 32, 8))
    client.create_job(job="stranded", profile=profile, workers=2, settings=grid_of(4, 1, 2))
    with pytest.raises(InfeasibleError):
        lose(client, "stranded", "w01")
    tell_of_an_overlay(client)


def tell_of_an_overlay(client):
    """Workers that are active, fetch the state, connect, were asked to leave, and failed: the log of a world in short words."""
    world = mesh("w00", "w01", "w02", "w03")
    world.join("w04", "w00", "w02")
    world.measure("w00", "w04")
    world.measure("w02", "w04")
    world.join("w05", "w01")
    world.tell("worker_draining", worker="w03", detail="maintenance")
    world.grow("w06", "w00")
    world.tell("worker_failed", worker="w06", detail="power")
    for event, _ in world.log:
        client.post_overlay_event("hospitals", event)


class Visitor:
    """A page in a fresh context; whatever the browser complains of, and where it asks, is remembered."""

    def __init__(self, browser, url, **options):
        self.url = url
        self.context = browser.new_context(base_url=url, **options)
        self.context.set_default_timeout(PATIENCE_MILLISECONDS)
        self.page = self.context.new_page()
        self.complaints, self.hosts = [], set()
        self.page.on(
            "console", lambda message: self.complaints.append(message.text) if message.type in ("error", "warning") else None
        )
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.hosts.add(urlsplit(request.url).netloc))

    def go(self, path):
        response = self.page.goto(path)
        self.page.locator("#live, .error-status").first.wait_for(state="attached")
        if path.endswith("/schedule"):
            self.page.locator("#schedule[data-drawn]").wait_for()
        return response

    def check(self):
        assert self.complaints == []
        assert self.hosts <= {urlsplit(self.url).netloc}
