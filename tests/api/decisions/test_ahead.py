"""Plans are made ahead by another process: the same plans, its errors told, its end survived, and nothing left behind."""

import os
import signal
import subprocess
import sys
from contextlib import closing
from dataclasses import replace

import pytest

from api.decisions import ahead
from kintsugi.core import codec
from kintsugi.core.cluster import Cluster
from kintsugi.core.errors import InvalidInputError
from planner.contingency import accepted, losses, plan_ahead
from planner.replan import replan
from tests.builders import snapshot_of, uniform_profile
from tests.patience import eventually
from tests.processes import is_running

pytestmark = pytest.mark.processes

FIRST = snapshot_of(uniform_profile(4), Cluster.uniform(6), 4)
BASE = accepted(FIRST, replan(FIRST))
LOSSES = list(losses(BASE, 100))


@pytest.fixture(scope="module")
def maker(fork_server):
    with closing(ahead.maker(fork_server)) as maker:
        yield maker


def process(maker):
    (helper,) = maker._helpers
    return helper.pid


def without_time(decision):
    return replace(decision, search=replace(decision.search, elapsed_seconds=0.0))


def test_what_is_made_ahead_is_what_would_be_made_here(maker):
    assert len(LOSSES) > 6
    for loss in LOSSES:
        fingerprint, decided = ahead.make(maker, codec.dumps(BASE), loss)
        expected = plan_ahead(BASE, loss)
        assert fingerprint == expected.fingerprint
        assert without_time(decided.wording.decision()) == without_time(expected.decision)
    assert process(maker) != os.getpid()


def test_an_error_is_told_as_what_it_is(maker):
    with pytest.raises(InvalidInputError) as caught:
        ahead.make(maker, "{}", LOSSES[0])
    assert caught.value.field


def test_where_the_process_ended_the_next_plan_has_another(maker):
    ahead.make(maker, codec.dumps(BASE), LOSSES[0])
    child = process(maker)
    os.kill(child, signal.SIGKILL)
    assert not eventually(lambda: is_running(child), lambda running: not running)
    assert ahead.make(maker, codec.dumps(BASE), LOSSES[0]) is not None
    assert process(maker) != child


SERVICE = """
import sys, time
from api.decisions import ahead, warm
from kintsugi.core import codec
from kintsugi.core.job import Snapshot
from planner.contingency import losses

if __name__ == "__main__":
    document = sys.stdin.read()
    server = warm.fork_server()
    maker = ahead.maker(server)
    ahead.make(maker, document, next(losses(codec.loads(Snapshot, document))))
    (helper,) = maker._helpers
    print(server.pid, helper.pid, flush=True)
    time.sleep(60)
"""


def test_a_service_that_is_killed_leaves_no_process_behind(tmp_path):
    script = tmp_path / "service.py"
    script.write_text(SERVICE)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen([sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    with parent:
        parent.stdin.write(codec.dumps(BASE))
        parent.stdin.close()
        processes = [int(pid) for pid in parent.stdout.readline().split()]
        parent.send_signal(signal.SIGKILL)
    assert not eventually(lambda: any(map(is_running, processes)), lambda running: not running)
