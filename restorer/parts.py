"""Which part of a layer's state each transfer of a migration carries."""

from collections import defaultdict
from dataclasses import dataclass

from kintsugi.core.decision import Migration, StateKind, Transfer


@dataclass(frozen=True, slots=True)
class Part:
    """One transfer with its share of the packed state, as fractions of its bytes."""

    index: int
    transfer: Transfer
    begin: float
    end: float

    def slice_of(self, num_bytes: int) -> slice:
        """The share in bytes; neighbours meet exactly."""
        return slice(round(self.begin * num_bytes), round(self.end * num_bytes))


def parts_of(migration: Migration) -> tuple[Part, ...]:
    """Every transfer with its share of the (target, layer, kind) that it serves together with others, in plan order."""
    totals: dict[tuple[str, int, StateKind], int] = defaultdict(int)
    for transfer in migration.transfers:
        totals[transfer.target, transfer.layer, transfer.kind] += transfer.num_bytes
    done: dict[tuple[str, int, StateKind], int] = defaultdict(int)
    parts = []
    for index, transfer in enumerate(migration.transfers):
        key = (transfer.target, transfer.layer, transfer.kind)
        begin, total = done[key], totals[key]
        done[key] += transfer.num_bytes
        parts.append(Part(index, transfer, begin / total if total else 0.0, done[key] / total if total else 1.0))
    return tuple(parts)
