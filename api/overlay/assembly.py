"""The parts about overlays put together."""

from api.overlay.desk import OverlayDesk
from api.overlay.scheduler import Scheduler
from api.settings import Settings
from api.storage.database import Database
from planner.overlay.synchronization import fastest, load_planner

SETTING = "KINTSUGI_OVERLAY_SYNCHRONIZATION"


def overlays_of(settings: Settings, database: Database) -> OverlayDesk:
    """The scheduler of an application.

    Raises:
        InvalidInputError: the settings name a function that is not there.
    """
    name = settings.overlay_synchronization
    planner = fastest if name is None else load_planner(name, SETTING)
    scheduler = Scheduler(database, planner=planner, max_overlays=settings.max_jobs)
    return OverlayDesk(scheduler, timeout_seconds=settings.overlay_timeout_seconds)
