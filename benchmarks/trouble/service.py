"""The deciding service as a process that can be killed and comes back on its port and database."""

import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kintsugi.core.errors import UnavailableError

_START_SECONDS = 180.0
_LAST_WORDS = 4_000
"""Characters of its log, where a service ended that should not have."""


class ServiceProcess:
    """One service; at most one process at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log = folder / "service.log"
        self._port = 0
        self._lock = threading.Lock()
        self._is_away = False
        """Whether it was killed on purpose, and is not back."""
        self._process = self._start()

    @property
    def url(self) -> str:
        """Where it answers, every time."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        """Of the process that runs now."""
        return self._process.pid

    def restart(self, away_seconds: float) -> threading.Thread:
        """Kill the process now, and start it again later, in the thread that is returned."""
        self._is_away = True
        self._process.kill()
        thread = threading.Thread(target=self._return, args=(away_seconds,), name="service-returns")
        thread.start()
        return thread

    def _return(self, away_seconds: float) -> None:
        with self._lock:
            self._end()
            time.sleep(away_seconds)
            try:
                self._process = self._start()
            finally:
                self._is_away = False

    def require_running(self) -> None:
        """Require that the process has not ended but where it was killed on purpose.

        Raises:
            UnavailableError: with what it said last.
        """
        if not self._is_away and (status := self._process.poll()) is not None and not self._is_away:
            said = self._log.read_text(errors="replace")[-_LAST_WORDS:]
            raise UnavailableError(f"ended with status {status}:\n{said}", field="service")

    def _start(self) -> "subprocess.Popen[bytes]":
        command = [
            sys.executable,
            "-X",
            "faulthandler",
            "-m",
            "kintsugi.cli",
            "serve",
            "--port",
            str(self._port),
            "--log-level",
            "warning",
        ]
        command += ["--database-url", f"sqlite:///{self._folder / 'kintsugi.sqlite3'}"]
        with self._log.open("wb") as file:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=file)
        try:
            self._port = _announced_port(process, self._log)
        except BaseException:
            process.kill()
            process.wait()
            raise
        return process

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End it; waits for a return under way."""
        with self._lock:
            self._end()


def _announced_port(process: "subprocess.Popen[bytes]", log: Path) -> int:
    deadline = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        if match := re.search(r"listening on \S+:(\d+)", log.read_text()):
            return int(match[1])
        time.sleep(0.01)
    raise UnavailableError(f"did not start:\n{log.read_text()}", field="service")


@contextmanager
def service_process(folder: Path) -> Iterator[ServiceProcess]:
    """A service on a database in `folder`, ended on every path."""
    process = ServiceProcess(folder)
    try:
        yield process
    finally:
        process.close()
