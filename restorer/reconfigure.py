"""Carries out a migration: state of whole layers, packed, cut over its sources, checksummed, taken in only when complete."""

import json
import zlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from kintsugi.core.decision import Migration, StateKind, Transfer
from kintsugi.core.errors import CommunicationError, ReconfigurationError
from restorer.transport import Receiving, Sending, TensorSpec, Transport

StateEntries = dict[tuple[str, str], Any]
"""State of one kind of one layer: (owner, key) -> tensor or plain number. The owner is a parameter or buffer name."""

ExportState = Callable[[int, StateKind], StateEntries]
"""(layer, kind) -> its state on this worker; tensors may be live, they are copied."""


def pack(entries: StateEntries) -> tuple[bytes, Tensor]:
    """Entries as a header and one flat byte tensor; bit for bit, in their own types."""
    described: list[list[Any]] = []
    chunks: list[Tensor] = []
    for (owner, key), value in entries.items():
        if isinstance(value, Tensor):
            described.append([owner, key, str(value.dtype).removeprefix("torch."), list(value.shape)])
            chunks.append(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8))
        else:
            described.append([owner, key, None, value])
    payload = torch.cat(chunks) if chunks else torch.empty(0, dtype=torch.uint8)
    return json.dumps(described).encode(), payload


def unpack(header: bytes, payload: Tensor) -> StateEntries:
    """Entries from header and payload; tensors are copies, free of the payload's alignment."""
    entries: StateEntries = {}
    offset = 0
    for owner, key, dtype_name, content in json.loads(header):
        if dtype_name is None:
            entries[owner, key] = content
            continue
        dtype = getattr(torch, dtype_name)
        num_bytes = torch.Size(content).numel() * dtype.itemsize
        entries[owner, key] = payload[offset : offset + num_bytes].clone().view(dtype).reshape(content)
        offset += num_bytes
    return entries


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


@dataclass(slots=True)
class _Arrival:
    """What a target collects for one (layer, kind)."""

    header: bytes = b""
    chunks: list[tuple[float, Tensor]] = field(default_factory=list)

    def describe(self, header: bytes, transfer: Transfer) -> None:
        """Note what the parts belong to; all sources must say the same."""
        if self.header not in (b"", header):
            raise ReconfigurationError(
                f"{transfer.kind.value} state of layer {transfer.layer} is not the same on all its sources",
                field="transfer",
                value=transfer.source,
            )
        self.header = header

    def entries(self) -> StateEntries:
        chunks = [chunk for _, chunk in sorted(self.chunks, key=lambda item: item[0])]
        return unpack(self.header, torch.cat(chunks))


_PREFIX = TensorSpec((3,), torch.int64)
_MESSAGES_PER_PART = 2


ArrivedState = dict[tuple[int, StateKind], StateEntries]
"""State that arrived, by (layer, kind)."""


def migrate(migration: Migration, worker: str, transport: Transport, export: ExportState) -> ArrivedState:
    """Send what `worker` owes to others and collect what it needs; nothing is changed in place.

    Args:
        migration: the same on all workers; transfers between other workers are passed over.
        worker: this worker's id.
        transport: over the new generation's group.
        export: this worker's own state.

    Returns:
        The state that arrived, by (layer, kind).

    Raises:
        CommunicationError: a source or target is gone, or what arrived does not have the checksum it was sent with.
        ReconfigurationError: the sources disagree, or optimizer state of a layer that moves would stay behind.
    """
    _require_optimizer_state(migration, worker, export)
    parts = parts_of(migration)
    sendings = _send_all([part for part in parts if part.transfer.source == worker], transport, export)
    arrived = _receive_all([part for part in parts if part.transfer.target == worker], transport)
    for sending in sendings:
        sending.wait()
    return arrived


def _require_optimizer_state(migration: Migration, worker: str, export: ExportState) -> None:
    planned = {(transfer.target, transfer.layer) for transfer in migration.transfers if transfer.kind is StateKind.OPTIMIZER}
    for transfer in migration.transfers:
        is_own = transfer.source == worker and transfer.kind is StateKind.PARAMETER
        if is_own and (transfer.target, transfer.layer) not in planned and export(transfer.layer, StateKind.OPTIMIZER):
            raise ReconfigurationError(
                f"is 0 for layer {transfer.layer} in the profile, and its optimizer keeps state that {transfer.target} would lack",
                field="optimizer_bytes",
                value=0,
            )


def _send_all(parts: Sequence[Part], transport: Transport, export: ExportState) -> list[Sending]:
    packed: dict[tuple[int, StateKind], tuple[bytes, Tensor]] = {}
    sendings = []
    for part in parts:
        transfer = part.transfer
        key = (transfer.layer, transfer.kind)
        if key not in packed:
            packed[key] = pack(export(*key))
        header, payload = packed[key]
        chunk = payload[part.slice_of(len(payload))]
        message = torch.cat([torch.frombuffer(bytearray(header), dtype=torch.uint8), chunk])
        prefix = torch.tensor([len(header), len(message), _checksum(message)])
        tag = part.index * _MESSAGES_PER_PART
        sendings += [transport.send(prefix, transfer.target, tag), transport.send(message, transfer.target, tag + 1)]
    return sendings


def _receive_all(parts: Sequence[Part], transport: Transport) -> ArrivedState:
    prefixes = [(part, transport.receive(_PREFIX, part.transfer.source, part.index * _MESSAGES_PER_PART)) for part in parts]
    messages: list[tuple[Part, Tensor, Receiving]] = []
    for part, receiving in prefixes:
        prefix = receiving.wait()
        spec = TensorSpec((int(prefix[1]),), torch.uint8)
        tag = part.index * _MESSAGES_PER_PART + 1
        messages.append((part, prefix, transport.receive(spec, part.transfer.source, tag)))
    arrivals: dict[tuple[int, StateKind], _Arrival] = defaultdict(_Arrival)
    for part, prefix, receiving in messages:
        message = receiving.wait().cpu()
        if _checksum(message) != int(prefix[2]):
            raise CommunicationError(
                f"{part.transfer.kind.value} state of layer {part.transfer.layer} from {part.transfer.source} arrived damaged",
                field="transfer",
            )
        header_bytes = int(prefix[0])
        arrival = arrivals[part.transfer.layer, part.transfer.kind]
        arrival.describe(message[:header_bytes].numpy().tobytes(), part.transfer)
        arrival.chunks.append((part.begin, message[header_bytes:]))
    return {key: arrival.entries() for key, arrival in arrivals.items()}


def _checksum(message: Tensor) -> int:
    return zlib.crc32(message.numpy().data)
