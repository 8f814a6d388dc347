"""Services that are forks of a process that has loaded them: they start in a tenth of the time.

The command itself, by an interpreter of its own, is `tests.processes.service`.
"""

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

from kintsugi import cli
from kintsugi.runtime.forking import PLANNER, end_with_fork_server, forkserver, preload
from tests.processes import START_SECONDS, STOP_SECONDS, ServiceProcess, announced

for module in ("kintsugi.cli.serve", PLANNER):
    preload(module)


def as_it_is() -> None: ...


class Fork:
    """`kintsugi` in a fork; signals and status as `subprocess` has them."""

    def __init__(self, *arguments: str, alter: Callable[[], None] = as_it_is) -> None:
        """Begin.

        Args:
            arguments: of the command.
            alter: called in the fork before the command: what is to be otherwise there.
        """
        context = forkserver()
        self._said, theirs = context.Pipe(duplex=False)
        here = (dict(os.environ), os.getcwd())
        self._process = context.Process(target=kintsugi, args=(arguments, alter, *here, theirs))
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def errors(self) -> int:
        """Descriptor of what it writes to standard error."""
        return self._said.fileno()

    def told(self) -> str:
        """What it wrote to standard error and nobody has read; of one that ended."""
        with open(os.dup(self.errors), encoding="utf-8") as errors:
            return errors.read()

    def send_signal(self, number: int) -> None:
        if self._process.is_alive():
            os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()

    def wait(self, timeout: float) -> int:
        self._process.join(timeout)
        assert self._process.exitcode is not None, f"still there after {timeout:g} s"
        return self._process.exitcode

    def close(self) -> None:
        self.kill()
        self.wait(STOP_SECONDS)
        self._process.close()
        self._said.close()


def kintsugi(
    arguments: Sequence[str], alter: Callable[[], None], environment: Mapping[str, str], folder: str, errors: Connection
) -> None:
    """As the command line has it: in this environment and folder, nothing to read, and only errors are told."""
    end_with_fork_server()  # with the tests, however they end
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor, standard in ((nothing, 0), (nothing, 1), (errors.fileno(), 2)):
        os.dup2(descriptor, standard)
    errors.close()
    alter()
    cli.main(list(arguments))


def outcome_of(*arguments: str) -> subprocess.CompletedProcess[str]:
    """What came of `kintsugi` in a fork: its exit status and what it wrote to standard error, which has to be short."""
    process = Fork(*arguments)
    try:
        status = process.wait(START_SECONDS)
        return subprocess.CompletedProcess(arguments, status, "", process.told())
    finally:
        process.close()


@contextmanager
def service(database: Path | str, *arguments: str) -> Iterator[ServiceProcess]:
    """`kintsugi serve` on a free port, once it answers; killed at the end if it still runs.

    The database is a file of SQLite, or a URL.
    """
    url = database if isinstance(database, str) else f"sqlite:///{database}"
    process = Fork("serve", "--port", "0", "--database-url", url, *arguments)
    try:
        yield ServiceProcess(process, announced(process.errors))
    finally:
        process.close()
