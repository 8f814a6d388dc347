"""A process that has begun is not searched for garbage over and over."""

import subprocess
import sys

SCRIPT = """
import gc
import api.app
from api import garbage

num_sought = len(gc.get_objects())
garbage.settle()
assert len(gc.get_objects()) < num_sought / 10, "garbage is sought among what stays"
assert gc.get_threshold() == garbage.THRESHOLDS and gc.isenabled()
"""


def test_what_stays_is_left_out():
    subprocess.run([sys.executable, "-c", SCRIPT], check=True, timeout=120)
