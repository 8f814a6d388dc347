"""The server that worker processes are forked from: what they need is loaded there, once for all of them."""

import multiprocessing
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import forkserver as servers
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

from kintsugi.core.parent import end_with_parent

# Between the first and the last no garbage is looked for; the last but one is what main modules of jobs import, which every worker
# imports again.
_PRELOAD = [
    "kintsugi.runtime.workers.cold",
    "torch",
    "torch._dynamo",
    "kintsugi.runtime.workers.worker",
    "kintsugi.runtime.train",
    "kintsugi.runtime.workers.warm",
]

_LONGEST_NAME = 15
"""Letters of a process's name (TASK_COMM_LEN of proc(5), less its end)."""

PLANNER = "kintsugi.runtime.selfgoverned.warm"
"""For fork servers to load: what workers that plan by themselves need, with the planner's compiled loops."""


def preload(module: str) -> None:
    """Have fork servers that are started from now on load a module for all their workers, too."""
    if module not in _PRELOAD:
        _PRELOAD.insert(-1, module)


def forkserver() -> ForkServerContext:
    """The context that workers are forked from."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOAD)
    return context


def start_process(
    name: str, main: Callable[[Connection], object], *, is_duplex: bool = True
) -> tuple[ForkServerProcess, Connection]:
    """Start a process that calls `main`, a function or partial that can be sent, with its end of a pipe; it, and our end."""
    context = forkserver()
    ours, theirs = context.Pipe(is_duplex)
    process = context.Process(target=main, args=(theirs,), name=f"kintsugi-{name}", daemon=True)
    try:
        process.start()
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return process, ours


def name_process(worker: str) -> None:
    """Have `ps -e` and `top` tell which worker this process is, on Linux; of a name that is too long its end."""
    own = worker.encode("ascii", "replace")  # the kernel counts bytes, and would cut others in two
    name = b"kintsugi " + own
    with suppress(OSError):
        Path("/proc/self/comm").write_bytes(name if len(name) <= _LONGEST_NAME else own[-_LONGEST_NAME:])


def end_with_fork_server() -> None:
    """Have the kernel end this process when its fork server ends, and that one when who started it ends; even while frozen.

    The fork server lives for as long as anybody holds one pipe; forks that hold it too would keep it alive.
    """
    end_with_parent(signal.SIGKILL)
    server: Any = servers._forkserver
    if server._forkserver_alive_fd is not None:
        os.close(server._forkserver_alive_fd)
        server._forkserver_alive_fd = None
