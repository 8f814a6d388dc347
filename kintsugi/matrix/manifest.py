"""The whole matrix as it is written down: what is to run, on what, and how far it came."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from kintsugi.core import checks
from kintsugi.matrix.cell import Cell
from kintsugi.matrix.record import SCHEMA_VERSION


class CellStatus(StrEnum):
    """What became of a cell in the latest invocation (ECRL, section 5.5)."""

    PENDING = "pending"
    COMPLETED = "completed"
    """It ran."""
    SKIPPED_EXISTS = "skipped_exists"
    """Its record was there."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestEntry:
    """One cell of the matrix."""

    cell: Cell
    status: CellStatus = CellStatus.PENDING
    reason: str = ""
    """Why it failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The whole matrix: what is to run, on what, and how far it came."""

    schema_version: int = SCHEMA_VERSION
    name: str
    started_at: str
    """As in RFC 3339."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """The machine (ECRL, table 2), by the name of the item."""
    entries: tuple[ManifestEntry, ...]

    def __post_init__(self) -> None:
        checks.name("name", self.name)
        checks.timestamp("started_at", self.started_at)
        checks.distinct([entry.cell.name for entry in self.entries], lambda index: f"entries[{index}].cell")
