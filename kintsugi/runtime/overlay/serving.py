"""`kintsugi serve` in a process of its own, on the copy of a scheduler's log."""

import os
import queue
import signal
import subprocess
import sys
import threading
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from kintsugi.client import Client
from kintsugi.core.errors import UnavailableError
from kintsugi.core.overlay import Overlay
from kintsugi.core.overlay_messages import OverlayEvent

ANNOUNCEMENT = "kintsugi: listening on "
_START_SECONDS = 60.0
_STOP_SECONDS = 15.0
_MOST_LINES = 20
"""Of what a service says that does not start."""
_BOUND_TO_PARENT = """
import runpy, signal, sys
from kintsugi.core.parent import end_with_parent
end_with_parent(signal.SIGTERM, int(sys.argv.pop(1)))
runpy.run_module("kintsugi.cli", run_name="__main__", alter_sys=True)
"""
"""`python -m kintsugi.cli`, which ends with this process: bound there, for what runs here between fork and start would need a fork
of all that this process has in memory."""


class ServiceProcess:
    """A service of its own for one job's overlay. It ends with the thread that starts it, however that ends."""

    def __init__(self, log: Path, job: str, *, host: str, port: int = 0, token: str | None = None) -> None:
        """Start it; returns once it can answer. It asks for tokens where this worker has one, and accepts that one for the job.

        Raises:
            UnavailableError: it did not start in time, or ended.
        """
        self._job = job
        command = [sys.executable, "-c", _BOUND_TO_PARENT, str(os.getpid()), "serve", "--host", host, "--port", str(port)]
        command += ["--database-url", f"sqlite:///{log.parent / 'scheduler.sqlite3'}", "--log-level", "error"]
        settings = {"KINTSUGI_OVERLAY_LOG": str(log), "KINTSUGI_OVERLAY_LOG_JOB": job, "KINTSUGI_PLANS_AHEAD": "false"}
        token = token or os.environ.get("KINTSUGI_TOKEN")
        if token:
            settings["KINTSUGI_OVERLAY_LOG_TOKEN"] = token
        self._process = subprocess.Popen(  # noqa: S603 - this interpreter, with arguments of our own
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, **settings},
        )
        assert self._process.stderr is not None
        self._lines: deque[str] = deque(maxlen=_MOST_LINES)
        self._addresses: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        """Null where it says nothing any more."""
        self._reader = threading.Thread(target=self._read, args=(self._process.stderr,), name="overlay-reads-service", daemon=True)
        self._reader.start()
        try:
            self.url = self._announced()
            self._client = Client(self.url, token=token)
        except BaseException:
            self._end()
            raise

    def post(self, event: OverlayEvent) -> Overlay:
        """Tell it something."""
        return self._client.post_overlay_event(self._job, event)

    def close(self) -> None:
        """End it."""
        self._client.close()
        self._end()

    def _end(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(_STOP_SECONDS)
        self._reader.join(_STOP_SECONDS)

    def _announced(self) -> str:
        """The address that it announces on standard error."""
        with suppress(queue.Empty):
            if (address := self._addresses.get(timeout=_START_SECONDS)) is not None:
                return address
        raise UnavailableError(f"the service did not start: {''.join(self._lines)[-500:].strip()}", field="service")

    def _read(self, pipe: BinaryIO) -> None:
        """All that it says, as long as it lives, for it would stand still once the pipe is full; its errors are this process's."""
        with pipe:
            for line in pipe:
                text = line.decode(errors="replace")
                if text.startswith(ANNOUNCEMENT):
                    self._addresses.put(text.removeprefix(ANNOUNCEMENT).strip())
                    continue
                self._lines.append(text)
                with suppress(OSError, ValueError):  # who reads this process's own errors may be gone
                    sys.stderr.write(text)
        self._addresses.put(None)
