"""`kintsugi serve` in a process of its own, on the copy of a scheduler's log."""

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from kintsugi.client import Client
from kintsugi.core.errors import UnavailableError
from kintsugi.core.overlay import Overlay
from kintsugi.core.overlay_messages import OverlayEvent

ANNOUNCEMENT = "kintsugi: listening on "
_START_SECONDS = 60.0
_STOP_SECONDS = 15.0
_CHUNK_BYTES = 65_536
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

    def __init__(self, log: Path, job: str, *, host: str, token: str | None = None) -> None:
        """Start it; returns once it can answer. It asks for tokens where this worker has one, and accepts that one for the job.

        Raises:
            UnavailableError: it did not start in time, or ended.
        """
        self._job = job
        command = [sys.executable, "-c", _BOUND_TO_PARENT, str(os.getpid()), "serve", "--host", host, "--port", "0"]
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
        assert self._process.stderr is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(_STOP_SECONDS)
        self._process.stderr.close()

    def _announced(self) -> str:
        """The address that it announces on standard error."""
        assert self._process.stderr is not None
        deadline, text = time.monotonic() + _START_SECONDS, ""
        while (left := deadline - time.monotonic()) > 0:
            readable, _, _ = select.select([self._process.stderr], [], [], left)
            chunk = os.read(self._process.stderr.fileno(), _CHUNK_BYTES) if readable else b""
            if not chunk:
                break
            text += chunk.decode(errors="replace")
            for line in text.splitlines(keepends=True):
                if line.startswith(ANNOUNCEMENT) and line.endswith("\n"):
                    return line.removeprefix(ANNOUNCEMENT).strip()
        raise UnavailableError(f"the service did not start: {text[-500:].strip()}", field="service")
