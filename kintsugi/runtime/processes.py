"""Worker processes as their agent sees them: started by forkserver, struck down when they must not act any more."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.context import ForkServerContext, ForkServerProcess

from kintsugi.runtime.messages import FromWorker, ToWorker
from kintsugi.runtime.models import TrainingJob
from kintsugi.runtime.worker import WorkerOptions, worker_main

_PRELOAD = ["torch", "torch._dynamo", "kintsugi.runtime.worker"]


def forkserver() -> ForkServerContext:
    """The context that workers are forked from, with torch loaded once for all of them."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOAD)
    return context


class WorkerHandle:
    """One worker process and the pipe to it. The agent alone holds the pipe's other end."""

    def __init__(
        self, worker: str, make_job: Callable[[], TrainingJob], options: WorkerOptions, context: ForkServerContext
    ) -> None:
        self.worker = worker
        self.last_heard_at = time.monotonic()
        self.struck_at: float | None = None
        """When the worker said that it strikes itself, or when it was killed from here."""
        self.connection, theirs = context.Pipe()
        self.process: ForkServerProcess = context.Process(
            target=worker_main, args=(worker, theirs, make_job, options), name=f"kintsugi-{worker}", daemon=True
        )
        try:
            self.process.start()
        finally:
            theirs.close()

    @property
    def pid(self) -> int:
        """Process id."""
        assert self.process.pid is not None
        return self.process.pid

    def send(self, message: ToWorker) -> None:
        """Tell the worker something; a dead one is told nothing, its end is noticed elsewhere."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send(message)

    def receive(self) -> FromWorker | None:
        """The next message, or None at the end of the pipe."""
        try:
            message: FromWorker = self.connection.recv()
        except (EOFError, OSError):
            return None
        self.last_heard_at = time.monotonic()
        return message

    def strike(self, signal_number: int = signal.SIGKILL) -> None:
        """Send a signal, and note when."""
        self.struck_at = time.monotonic()
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal_number)

    def fence(self, timeout_seconds: float = 10.0) -> None:
        """Make sure that the process will never act again: SIGKILL, and wait for its end."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.process.join(timeout_seconds)
        self.connection.close()
        if self.process.is_alive():
            raise TimeoutError(f"worker {self.worker} (process {self.pid}) did not end {timeout_seconds:g} s after SIGKILL")
        self.process.close()
