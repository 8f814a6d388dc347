"""The jobs that the load is about."""

from typing import Any

from kintsugi.client import Client
from kintsugi.core.handling import Handling
from kintsugi.core.job import JobSettings
from tests.builders import uniform_profile

NUM_LAYERS = 8


def job(num_workers: int, **settings: Any) -> dict[str, Any]:
    """A job of 8 equal layers, as a client creates it."""
    return {
        "profile": uniform_profile(NUM_LAYERS),
        "workers": num_workers,
        "settings": JobSettings(num_microbatches=2 * num_workers, **settings),
    }


def new_jobs(url: str, num_jobs: int, sizes: tuple[int, ...], handling: Handling | None = None) -> list[tuple[str, int]]:
    """Names of new jobs and their workers; sizes take turns."""
    with Client(url) as client:
        chosen = [sizes[n % len(sizes)] for n in range(num_jobs)]
        return [
            (client.create_job(job=f"job-{n}", handling=handling, **job(size)).summary.id, size) for n, size in enumerate(chosen)
        ]
