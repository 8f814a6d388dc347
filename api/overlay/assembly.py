"""The parts about overlays put together."""

from api.overlay.desk import OverlayDesk
from api.overlay.scheduler import Scheduler
from api.settings import Settings
from api.storage.database import Database
from api.waiting.hearsay import Hearsay
from planner.overlay.synchronization import SynchronizationPlanner, fastest, load_planner

SETTING = "KINTSUGI_OVERLAY_SYNCHRONIZATION"


def overlays_of(settings: Settings, database: Database) -> OverlayDesk:
    """The scheduler of an application.

    Raises:
        InvalidInputError: the settings name a function that is not there.
    """
    scheduler = Scheduler(database, planner=planner_of(settings), max_overlays=settings.max_jobs)
    return OverlayDesk(scheduler, timeout_seconds=settings.overlay_timeout_seconds, witness=Hearsay(database, "overlays"))


def planner_of(settings: Settings) -> SynchronizationPlanner:
    """What chooses overlays' trees and rings.

    Raises:
        InvalidInputError: the settings name a function that is not there.
    """
    name = settings.overlay_synchronization
    return fastest if name is None else load_planner(name, SETTING)
