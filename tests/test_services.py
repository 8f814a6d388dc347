"""Services of tests end with them."""

import os
import signal
import subprocess
import sys

import pytest

from tests.patience import eventually
from tests.processes import is_running

pytestmark = pytest.mark.processes

TESTS = """
import sys, time
from kintsugi.runtime import forking
from tests.processes import announced
from tests.services import Fork

if __name__ == "__main__":
    forking._PRELOAD[:] = ["tests.services"]
    service = Fork("serve", "--port", "0", "--database-url", sys.argv[1])
    assert announced(service.errors)
    print(service.pid, flush=True)
    time.sleep(60)
"""


def test_tests_that_are_killed_leave_no_service_behind(tmp_path):
    script = tmp_path / "tests_.py"
    script.write_text(TESTS)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, script, f"sqlite:///{tmp_path}/kintsugi.sqlite3"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as tests:
        service = int(tests.stdout.readline())
        assert is_running(service)
        tests.send_signal(signal.SIGKILL)
    assert not eventually(lambda: is_running(service), lambda running: not running)
