"""Services in processes of their own, ended on every path."""

import itertools
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

START_SECONDS = 180.0
STOP_SECONDS = 90.0
ANNOUNCEMENT = "kintsugi: listening on "


class Process(Protocol):
    """What is asked of a service's process: `subprocess.Popen`, or what stands in for one."""

    @property
    def pid(self) -> int: ...

    def send_signal(self, number: int, /) -> None: ...

    def kill(self) -> None: ...

    def wait(self, timeout: float) -> int: ...


@dataclass(frozen=True)
class ServiceProcess:
    process: Process
    url: str

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(STOP_SECONDS)

    def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_SECONDS)


@contextmanager
def service(database: Path | str, *arguments: str, python: str = sys.executable) -> Iterator[ServiceProcess]:
    """`kintsugi serve` on a free port, once it answers; killed at the end if it still runs.

    The database is a file of SQLite, or a URL.
    """
    url = database if isinstance(database, str) else f"sqlite:///{database}"
    command = [python, "-m", "kintsugi.cli", "serve", "--port", "0", "--database-url", url, *arguments]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        try:
            assert process.stderr is not None
            yield ServiceProcess(process, announced(process.stderr.fileno()))
        finally:
            process.kill()


def announced(errors: int) -> str:
    """The address that the service announces on standard error, of which this is the descriptor."""
    deadline, text = time.monotonic() + START_SECONDS, ""
    while (left := deadline - time.monotonic()) > 0:
        readable, _, _ = select.select([errors], [], [], left)
        chunk = os.read(errors, 65_536) if readable else b""
        if not chunk:
            break
        text += chunk.decode()
        for line in text.splitlines(keepends=True):
            if line.startswith(ANNOUNCEMENT) and line.endswith("\n"):
                return line.removeprefix(ANNOUNCEMENT).strip()
    raise AssertionError(f"the service announced no address: {text}")


def free_port() -> int:
    """One at which nobody on this machine listens now."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def free_descriptors(pid: int) -> Iterator[int]:
    """Numbers of descriptors that a process does not use, from the lowest one on: those that it gets next."""
    return (number for number in itertools.count() if not os.path.lexists(f"/proc/{pid}/fd/{number}"))


def is_running(pid: int) -> bool:
    """Whether a process is there and has not ended; one that nobody buried has."""
    try:
        return state_of(pid) != "Z"
    except (FileNotFoundError, ProcessLookupError):  # of which the latter where it ends between opening and reading
        return False


def state_of(pid: int) -> str:
    """What a process does, as proc(5) has it: R runs, S waits, T is stopped, Z has ended."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
