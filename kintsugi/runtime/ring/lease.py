"""Who decides a generation of which no majority is left: a durable compare-and-swap, one for each generation."""

import os
import re
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Protocol

from kintsugi.client import Client
from kintsugi.core import codec
from kintsugi.core.errors import ConflictError, NotFoundError
from kintsugi.runtime.disk import sync_folder
from kintsugi.runtime.ring.messages import Agreement

_PREFIX = "generation-"
_NAME = re.compile(rf"{_PREFIX}(0|[1-9][0-9]{{0,17}})\.json")


class Lease(Protocol):
    """Holds one agreement for each generation for ever: the first that was asked for."""

    def decide(self, agreement: Agreement) -> Agreement:
        """What it holds for the agreement's generation: this one, unless it held another one before.

        Raises:
            UnavailableError: it does not answer; ask again.
        """
        ...

    def held(self, generation: int) -> Agreement | None:
        """The latest agreement that it holds for this generation or one after it; null where there is none.

        Raises:
            UnavailableError: it does not answer; ask again.
        """
        ...


class FolderLease:
    """A lease in a folder that all members see, for jobs without a service. The first link to a name wins (POSIX).

    The folder is that of one life of a job: what an earlier life agreed on is held for ever, too, and would pass for this one's.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def decide(self, agreement: Agreement) -> Agreement:
        """What the folder holds for this generation from now on; it is on the disk."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile("w", dir=self._folder) as file:
            file.write(codec.dumps(agreement))
            file.flush()
            os.fsync(file.fileno())
            with suppress(FileExistsError):
                os.link(file.name, self._path(agreement.generation))
        sync_folder(self._folder)
        return codec.load(Agreement, self._path(agreement.generation))

    def held(self, generation: int) -> Agreement | None:
        """The latest agreement that the folder holds for this generation or one after it."""
        names = (_NAME.fullmatch(path.name) for path in self._folder.glob(f"{_PREFIX}*.json"))
        latest = max((int(name[1]) for name in names if name is not None), default=-1)
        return codec.load(Agreement, self._path(latest)) if latest >= generation else None

    def _path(self, generation: int) -> Path:
        return self._folder / f"{_PREFIX}{generation}.json"


class ServiceLease:
    """The service's lease: as durable as its database, for workers wherever they are that can reach it."""

    def __init__(self, client: Client, job: str, holder: str) -> None:
        """`holder` is the worker that asks; `client` is not closed here."""
        self._client, self._job, self._holder = client, job, holder

    def decide(self, agreement: Agreement) -> Agreement:
        """What the service holds for this generation from now on."""
        with suppress(ConflictError):
            self._client.claim_lease(self._job, agreement.generation, holder=self._holder, agreement=codec.dumps(agreement))
            return agreement
        return codec.loads(Agreement, self._client.lease(self._job, agreement.generation).agreement)

    def held(self, generation: int) -> Agreement | None:
        """The latest agreement that the service holds for this generation or one after it."""
        try:
            return codec.loads(Agreement, self._client.lease(self._job, generation, latest=True).agreement)
        except NotFoundError:
            return None
