"""Lines of Python, each supervised as a command."""

import sys
from pathlib import Path

from kintsugi.runtime.supervising.supervision import SupervisorPolicy, SupervisorRecord
from kintsugi.runtime.supervising.supervisor import Supervisor

AT_ONCE = SupervisorPolicy(pause_seconds=0.0)


def supervised(code: str, policy: SupervisorPolicy = AT_ONCE) -> SupervisorRecord:
    """Supervise a line of Python; `n` is the number of its attempt."""
    script = f"import os, pathlib, signal, sys; n = int(os.environ['KINTSUGI_ATTEMPT']); {code}"
    return Supervisor(command=[sys.executable, "-c", script], run=Path(), policy=policy).supervise()
