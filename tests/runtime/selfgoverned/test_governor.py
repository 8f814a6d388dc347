"""A worker that governs itself does one thing after the other, and nothing after the last."""

import sys
from contextlib import closing
from multiprocessing import Pipe

from kintsugi.runtime.messages import Stop
from kintsugi.runtime.options import WorkerOptions
from kintsugi.runtime.selfgoverned.governor import Governor


def test_what_comes_while_it_is_stopped_is_not_done():
    """As when the others agree on a generation just as they let it go: it failed on that, and the job with it."""
    agent, line = Pipe()
    with closing(agent), closing(line):
        governor = Governor("w00", line, WorkerOptions())
        governor._post(governor._stop)
        governor._post(sys.exit, "did something after it was stopped")
        governor._run()
        assert governor.inward.recv() == Stop()
        assert not agent.poll()
