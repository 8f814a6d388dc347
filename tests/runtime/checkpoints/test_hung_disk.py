"""The agent waits for a disk that hangs only where it needs its answer, and says so."""

import pytest
from structlog.testing import capture_logs

from kintsugi.core.errors import UnavailableError
from kintsugi.runtime.layout import CHECKPOINTS, LATEST
from kintsugi.runtime.messages import PartFailed, PartWritten
from tests.runtime.checkpoints.test_keeper import ATTEMPT, SECONDS, STEP, Run
from tests.runtime.hung_disk import hung


@pytest.fixture
def impatient(tmp_path):
    made = Run(tmp_path, every_steps=1, disk_timeout_seconds=1.0)
    made.begin()
    made.write_all(step=STEP - 1)
    assert made.keeper.newest().step == STEP - 1
    return made


def test_a_disk_that_hangs_keeps_the_agent_from_nothing_but_what_it_has_to_read(impatient):
    """What it needs and does not get is an error that names the folder; it goes on with everything else, and ends."""
    keeper = impatient.keeper
    with hung(impatient.options.folder / CHECKPOINTS / f".{LATEST}.new"):
        impatient.write_all()
        keeper.written("w00", PartWritten(attempt=ATTEMPT, step=STEP + 1, files={}, **SECONDS))
        keeper.failed("w01", PartFailed(ATTEMPT, STEP + 1, "no space"))
        assert keeper.look() is None
        with pytest.raises(UnavailableError, match=r"run: has not answered for 1 s: mend what its disk is on") as caught:
            keeper.newest()
        assert caught.value.value == str(impatient.options.folder)
        with capture_logs() as logs:
            keeper.close()
            keeper.close()
        assert [log["folder"] for log in logs] == [str(impatient.options.folder)], "it is told once"
        assert [record.step for record in keeper.costs.records] == [STEP - 1]


def test_a_disk_that_answers_again_is_gone_on_with(impatient):
    with hung(impatient.options.folder / CHECKPOINTS / f".{LATEST}.new"):
        impatient.write_all()
        with pytest.raises(UnavailableError):
            impatient.keeper.newest()
    impatient.settle()
    impatient.write_all(step=STEP + 1)
    assert impatient.keeper.newest().step == STEP + 1
    impatient.keeper.close()


def test_a_disk_that_hangs_at_the_beginning_is_named(tmp_path):
    run = Run(tmp_path, disk_timeout_seconds=1.0)
    with hung(tmp_path / CHECKPOINTS / LATEST):
        with pytest.raises(UnavailableError, match="run: has not answered"):
            run.keeper.begin()
        run.keeper.close()
