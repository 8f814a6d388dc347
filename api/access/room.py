"""How much the service holds: checked before something new is taken in."""

from collections.abc import Sequence

from api.problems import LimitReachedError
from api.schemas import NewJob
from api.settings import Settings
from api.storage.store import Store
from kintsugi.core.membership import Event, EventKind, Membership


def require_room(settings: Settings, store: Store, request: NewJob) -> None:
    """Require that a new job fits.

    Raises:
        LimitReachedError: it has too many workers, or there are as many jobs as there may be.
    """
    num_workers = request.workers if request.cluster is None else len(request.cluster.workers)
    _require_room_for_workers(settings, num_workers or 0)
    if store.num_jobs() >= settings.max_jobs:
        message = f"allows {settings.max_jobs} jobs that go on, and so many do; say of those that are over that they ended"
        raise LimitReachedError(message, field="KINTSUGI_MAX_JOBS")


def require_room_to_join(settings: Settings, membership: Membership, events: Sequence[Event]) -> None:
    """Require that the workers that join fit into their job; those that it knows already may come back.

    Raises:
        LimitReachedError: the job would have too many workers.
    """
    joining = {event.worker for event in events if event.kind is EventKind.WORKER_JOINED}
    if joining:
        known = membership.cluster.by_id
        new = joining - known.keys()
        _require_room_for_workers(settings, len(known) + len(new) if new else 0)


def _require_room_for_workers(settings: Settings, num_workers: int) -> None:
    if num_workers > settings.max_workers_per_job:
        message = f"allows {settings.max_workers_per_job} workers in a job, and this one would have {num_workers}"
        raise LimitReachedError(message, field="KINTSUGI_MAX_WORKERS_PER_JOB", value=num_workers)
