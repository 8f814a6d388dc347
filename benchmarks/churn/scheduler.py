"""`kintsugi serve` on a node of the test bed, with a token, since it is reached from others."""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from api.access.tokens import NewToken, Scope
from api.access.vault import Vault
from api.storage.database import Database
from api.storage.upgrade import upgrade
from benchmarks.churn.testbed import Testbed
from kintsugi.core.errors import UnavailableError

_START_SECONDS = 120.0
_END_SECONDS = 20.0
_PORT = 8000


@dataclass(frozen=True, slots=True)
class SchedulerAccess:
    """How workers reach the scheduler."""

    url: str
    token: str


@contextmanager
def scheduler(testbed: Testbed, node: str) -> Iterator[SchedulerAccess]:
    """The service in a node's namespace, ended on every path."""
    with tempfile.TemporaryDirectory(prefix="kintsugi-") as folder:
        url = f"sqlite:///{folder}/kintsugi.sqlite3"
        secret = _token(url)
        log = Path(folder, "service.log")
        with log.open("wb") as file:
            process = subprocess.Popen(
                _command(testbed, node, url),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=file,
                env={**os.environ, "KINTSUGI_MAX_REQUESTS_PER_SECOND": "1000", "KINTSUGI_MAX_REQUEST_BURST": "1000"},
            )
        try:
            _await_start(process, log)
            yield SchedulerAccess(f"http://{testbed.address(node)}:{_PORT}", secret)
        finally:
            process.kill()
            process.wait(_END_SECONDS)


def _token(database_url: str) -> str:
    database = Database(database_url)
    try:
        upgrade(database)
        return Vault(database).issue(NewToken(name="churn", scope=Scope.REPORT)).secret
    finally:
        database.close()


def _command(testbed: Testbed, node: str, database_url: str) -> list[str]:
    serve = [sys.executable, "-m", "kintsugi.cli", "serve", "--host", testbed.address(node), "--port", str(_PORT)]
    options = ["--log-level", "warning", "--database-url", database_url]
    return ["nsenter", f"--net={testbed.namespace(node)}", *serve, *options]


def _await_start(process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        if re.search(r"listening on \S+:\d+", log.read_text()):
            return
        time.sleep(0.02)
    raise UnavailableError(f"did not start:\n{log.read_text()}", field="scheduler")
