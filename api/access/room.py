"""How much the service holds: checked before something new is taken in."""

from api.problems import LimitReachedError
from api.schemas import NewJob
from api.settings import Settings
from api.store import Store


def require_room(settings: Settings, store: Store, request: NewJob) -> None:
    """Require that a new job fits; one that is there already may be asked for again.

    Raises:
        LimitReachedError: it has too many workers, or there are as many jobs as there may be.
    """
    num_workers = request.workers if request.cluster is None else len(request.cluster.workers)
    if num_workers is not None and num_workers > settings.max_workers_per_job:
        message = f"allows {settings.max_workers_per_job} workers in a job, and this one has {num_workers}"
        raise LimitReachedError(message, field="KINTSUGI_MAX_WORKERS_PER_JOB", value=num_workers)
    is_there = request.id is not None and store.job(request.id) is not None
    if not is_there and store.num_jobs() >= settings.max_jobs:
        raise LimitReachedError(f"allows {settings.max_jobs} jobs, and so many are there", field="KINTSUGI_MAX_JOBS")
