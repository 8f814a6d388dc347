"""Carries out a migration: every source and target at once, each pair in a stream of its own; nothing is changed in place."""

import queue
import threading
import traceback
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from contextlib import closing
from functools import partial
from typing import TypeVar

from kintsugi.core.decision import Migration, StateKind
from kintsugi.core.errors import CommunicationError, KintsugiError, ReconfigurationError
from restorer.packing import PackedState, StateEntries
from restorer.parts import Part, parts_of
from restorer.staging import ArrivedState, Staging, StateKey
from restorer.streams import receive_parts, send_parts
from restorer.transport import HostTransport

ExportState = Callable[[int, StateKind], StateEntries]
"""(layer, kind) -> its state on this worker; tensors may be live, they are read while it does not change."""

OpenTransport = Callable[[Callable[[], None]], HostTransport]
"""A transport for one stream's thread; what it is given is called when the transport is given up, whatever the thread waits for."""

Stream = Callable[[HostTransport], None]
"""Sends or receives all parts of one pair over a transport of its own."""
K = TypeVar("K", bound=Hashable)


def migrate(
    migration: Migration,
    worker: str,
    staging: Staging,
    *,
    version: int,
    export: ExportState,
    open_transport: OpenTransport,
) -> ArrivedState:
    """Send what `worker` owes to others and collect what it needs.

    What arrives is kept in `staging` when this fails, and not fetched again for the same version. No more than
    `streams.MOST_IN_FLIGHT` chunks per stream exist besides.

    Args:
        migration: the same on all workers; transfers between other workers are passed over.
        worker: this worker's id.
        staging: this worker's, over all attempts.
        version: committed steps of the state that moves.
        export: this worker's own state.
        open_transport: a transport over the new generation's group, in host memory, whose waits nobody else's wait for.

    Returns:
        The state that arrived, by (layer, kind).

    Raises:
        CommunicationError: a source or target is gone, or what arrives stays damaged.
        ReconfigurationError: the sources disagree, or optimizer state of a layer that moves would stay behind.
    """
    _require_optimizer_state(migration, worker, export)
    parts = parts_of(migration)
    packed: dict[StateKey, PackedState] = {}
    streams: list[Stream] = []
    for own in _by(lambda part: part.transfer.target, [part for part in parts if part.transfer.source == worker]):
        keys = [(part.transfer.layer, part.transfer.kind) for part in own]
        packed |= {key: PackedState(export(*key)) for key in keys if key not in packed}
        streams.append(partial(send_parts, own, [packed[key] for key in keys], staging.device))
    wanted = [part for part in parts if part.transfer.target == worker]
    turn = staging.begin(version, {(part.transfer.layer, part.transfer.kind) for part in wanted})
    by_source = _by(lambda part: part.transfer.source, wanted)
    streams += [partial(receive_parts, own, staging, turn) for own in by_source]
    _run_all(streams, open_transport, worker)
    return staging.arrived()


def _by(key: Callable[[Part], K], parts: Sequence[Part]) -> list[list[Part]]:
    """Parts with the same key together, in order."""
    groups: dict[K, list[Part]] = defaultdict(list)
    for part in parts:
        groups[key(part)].append(part)
    return list(groups.values())


def _run_all(streams: Sequence[Stream], open_transport: OpenTransport, worker: str) -> None:
    """Run streams side by side; the first failure is raised, and the others end when the groups are given up."""
    outcomes: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()

    def give_up() -> None:
        outcomes.put(CommunicationError("the groups were given up"))

    def run(stream: Stream) -> None:
        try:
            with closing(open_transport(give_up)) as transport:
                stream(transport)
        except Exception as error:  # whatever it is, the waiting thread must learn of it
            outcomes.put(_without_frames(error))
        else:
            outcomes.put(None)

    for stream in streams:
        threading.Thread(target=run, args=(stream,), name=f"stream-{worker}", daemon=True).start()
    for _ in streams:
        if (failure := outcomes.get()) is not None:
            try:
                raise failure
            finally:
                del failure  # which refers to this frame


def _without_frames(error: Exception) -> Exception:
    """Frames refer to the transport, and so keep its sockets open; where the error is none of ours its traceback stays as text."""
    if not isinstance(error, KintsugiError):
        error.add_note("".join(traceback.format_exception(error)))
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


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
