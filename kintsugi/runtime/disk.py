"""How fast a folder is written and read, for pricing checkpoints before any was written."""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class DiskRates:
    """Bytes per second, through to the disk and back from the kernel's cache."""

    write_bytes_per_second: float
    read_bytes_per_second: float


def disk_rates(folder: Path) -> DiskRates:
    """Write and read one file of 4 MiB in `folder`, which is made where it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryFile(dir=folder, buffering=0) as file:
        began = time.monotonic()
        file.write(bytes(_BYTES))
        os.fsync(file.fileno())
        written = time.monotonic()
        file.seek(0)
        file.read(_BYTES)
        read = time.monotonic()
    return DiskRates(_BYTES / max(written - began, 1e-9), _BYTES / max(read - written, 1e-9))
