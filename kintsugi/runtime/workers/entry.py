"""Where worker processes begin: what only they need is loaded in them alone, and not by those that start them."""

from collections.abc import Callable
from multiprocessing.connection import Connection

from kintsugi.runtime.models import TrainingJob
from kintsugi.runtime.options import WorkerOptions


def worker_main(worker: str, make_job: Callable[[], TrainingJob], options: WorkerOptions, connection: Connection) -> None:
    """A process that its agent governs; returns when the agent says so or is gone."""
    from kintsugi.runtime.workers.worker import live

    live(worker, connection, make_job, options)


def self_governed_main(worker: str, make_job: Callable[[], TrainingJob], options: WorkerOptions, connection: Connection) -> None:
    """A process that governs itself; returns when the agent says so or is gone."""
    from kintsugi.runtime.selfgoverned.governor import live

    live(worker, connection, make_job, options)
