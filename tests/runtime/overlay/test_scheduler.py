"""The way to the scheduler, at either end of a worker's life."""

import pytest

from kintsugi.core.errors import UnavailableError
from kintsugi.runtime.overlay.scheduler import HttpScheduler


@pytest.mark.parametrize("was_asked", [False, True])
def test_once_it_is_closed_no_connection_is_made_for_whoever_still_asks(was_asked):
    scheduler = HttpScheduler(["http://127.0.0.1:1"], "job")
    if was_asked:
        with pytest.raises(UnavailableError, match="does not answer"):
            scheduler.overlay(None, 0.0, 0)
    scheduler.close()
    with pytest.raises(UnavailableError, match="not asked any more"):
        scheduler.overlay(None, 0.0, 0)
