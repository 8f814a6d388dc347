"""The probe measures something credible, and leaves no process behind, whatever happens."""

import multiprocessing
import os
import signal
from functools import partial

import pytest

from kintsugi.core.errors import InvalidInputError, UnavailableError, WorkerError
from kintsugi.runtime.emulation import EmulatedTimes, emulated_job
from kintsugi.runtime.measuring.peers import Peers
from kintsugi.runtime.measuring.probe import probe

NOTHING = EmulatedTimes(forward_seconds=0.0, backward_input_seconds=0.0, backward_weight_seconds=0.0)
make_job = partial(emulated_job, [NOTHING] * 2, num_microbatches=2, num_steps=1)

pytestmark = pytest.mark.processes


def failing_job():
    raise ValueError("no such data set")


def vanishing_job():
    os._exit(3)


@pytest.fixture(autouse=True)
def leaves_no_process():
    before = set(multiprocessing.active_children())
    yield
    assert set(multiprocessing.active_children()) <= before


def test_everything_is_measured():
    probed = probe(make_job, num_workers=3, repeats=5)
    link = probed.network.inter_host
    assert link.alpha_seconds > 0
    assert link.beta_seconds_per_byte >= 0
    assert probed.network.intra_host == link
    assert probed.commit_seconds > 0
    recovery = probed.recovery
    assert min(recovery.detect_seconds, recovery.regroup_seconds, recovery.restart_seconds) > 0
    assert recovery.checkpoint_interval_seconds is None
    assert "over 3 processes" in probed.detail


def test_error_of_the_job_is_reported():
    with pytest.raises(WorkerError, match="no such data set"):
        probe(failing_job, num_workers=2)


def test_a_process_that_says_nothing_comes_with_what_usually_ends_it():
    with pytest.raises(WorkerError, match=r"ended before it knew the job.*__name__ == \"__main__\".*cannot import") as caught:
        probe(vanishing_job, num_workers=2)
    assert caught.value.value == "w00"


def test_no_workers_are_refused():
    with pytest.raises(InvalidInputError, match="num_workers"):
        probe(make_job, num_workers=0)


def test_peers_connect_again_and_again_and_end():
    with Peers(3, timeout_seconds=120) as peers:
        assert all(peers.connect() > 0 for _ in range(2))
        assert peers.message_seconds(64, 3) > 0
        assert peers.all_reduce_seconds(3) > 0
        pids = peers.pids
    assert len(pids) == 3
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_frozen_peer_is_waited_for_no_longer_than_allowed():
    with Peers(2, timeout_seconds=120) as peers:
        peers.connect()
        os.kill(peers.pids[1], signal.SIGSTOP)
        peers._timeout_seconds = 0.3
        with pytest.raises(UnavailableError, match="no answer within"):
            peers.message_seconds(64, 1)


def test_peer_that_ends_is_reported():
    with Peers(2, timeout_seconds=120) as peers:
        peers.connect()
        os.kill(peers.pids[0], signal.SIGKILL)
        with pytest.raises(UnavailableError, match="ended in the middle"):
            peers.message_seconds(64, 1)
