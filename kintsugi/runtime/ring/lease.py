"""Who decides a generation of which no majority is left: a durable compare-and-swap, one for each generation."""

import os
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Protocol

from kintsugi.core import codec
from kintsugi.runtime.ring.messages import Agreement


class Lease(Protocol):
    """Holds one agreement for each generation for ever: the first that was asked for."""

    def decide(self, agreement: Agreement) -> Agreement:
        """What it holds for the agreement's generation: this one, unless it held another one before.

        Raises:
            UnavailableError: it does not answer; ask again.
        """
        ...

    def held(self, generation: int) -> Agreement | None:
        """What it holds for a generation; null where it was not asked.

        Raises:
            UnavailableError: it does not answer; ask again.
        """
        ...


class FolderLease:
    """A lease in a folder that all members see, for jobs without a service. The first link to a name wins (POSIX)."""

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
        self._sync()
        return codec.load(Agreement, self._path(agreement.generation))

    def held(self, generation: int) -> Agreement | None:
        """What the folder holds for a generation."""
        path = self._path(generation)
        return codec.load(Agreement, path) if path.exists() else None

    def _path(self, generation: int) -> Path:
        return self._folder / f"generation-{generation}.json"

    def _sync(self) -> None:
        descriptor = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
