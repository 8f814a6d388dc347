"""A run whose folder lies on a disk that hangs so that nobody who writes to it can even be killed."""

import json
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.runtime.checkpoints.frozen_disk import FROZEN_AT, NUM_STEPS
from tests.runtime.jobs import tiny_gpt
from tests.runtime.runs import gpt_request, run

ROOT = Path(__file__).parents[3]
TOOLS = ("unshare", "mount", "mkfs.ext4", "fsfreeze")
MAY = os.geteuid() == 0 and Path("/dev/loop-control").exists() and all(map(shutil.which, TOOLS))


@pytest.mark.processes
@pytest.mark.skipif(not MAY, reason=f"needs root, loop devices and {', '.join(TOOLS)}")
def test_a_disk_that_hangs_for_good_costs_its_checkpoints_and_nothing_else():
    command = ["unshare", "--mount", "--propagation", "private", sys.executable, "-m", "tests.runtime.checkpoints.frozen_disk"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    (seen,) = (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))  # workers log when they like
    reference = run(partial(tiny_gpt, num_steps=NUM_STEPS), gpt_request(1, 2))
    assert seen["losses"] == list(reference.losses)
    assert all(step <= FROZEN_AT + 1 for step in seen["checkpoints"])
    assert seen["told"] == [
        "a checkpoint could not be written; the previous one stays",
        "a worker was killed, and its process ends once the kernel lets it go: is a disk hung?",
        "the disk of the checkpoints does not answer; the last ones may be missing",
    ]
