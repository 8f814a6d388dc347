"""How fast state is staged and migrated, beside what plain copies and messages reach in the same run.

First copies of one block of bytes, without anything around them, and the two halves of staging by themselves: state is read into
sealed chunks (as a source does), and chunks are taken in (as a target does). Then whole layers are migrated between two processes
by `restorer.reconfigure.migrate`, from the device to the device, between as many bytes in messages over the same gloo group and
loopback, as many under way, in several sizes: by themselves, in the same buffers again and again; and, as the ceiling of staging,
each copied from the device's memory before it is sent and into it when it was received. No message is sealed or verified there, no
memory is new, and nobody could give the messages up.

    python -m benchmarks.transfers [--device cpu|cuda] [--largest-mebibytes N] [--state-mebibytes N] [--repeats N]
        [--output DIR] [--check]
"""

import argparse
import os
import statistics
import sys
import time
from collections import deque
from functools import partial
from itertools import pairwise

import torch

from benchmarks.arguments import at_least, folder
from benchmarks.copies import device_copies, host_copies, rate
from benchmarks.members import LocalMembers, Member
from kintsugi.core.decision import Migration, StateKind, Transfer
from kintsugi.core.errors import InvalidInputError
from kintsugi.reporting.tables import Column, Table
from kintsugi.runtime.devices import require_device
from kintsugi.runtime.machine import description
from restorer import streams
from restorer.gloo import GlooGroup
from restorer.packing import PackedState, StateEntries
from restorer.reconfigure import migrate
from restorer.sealing import Sealer
from restorer.staging import Staging

ASKED_RATIO = 0.7
MEBIBYTE = 2**20
SIZES = (4, 16, 64, 256, 1024)
"""Of the copies, in MiB."""
LAYER_BYTES = 64 * MEBIBYTE
MESSAGE_BYTES = (1, 4, 16, 64)
"""Of the ceiling's messages, in MiB."""
SOURCE, TARGET = "source", "target"
KINDS = (StateKind.PARAMETER, StateKind.OPTIMIZER)


def entries_of(num_bytes: int, device: torch.device) -> StateEntries:
    """State of a few tensors, none of which ends where a chunk does."""
    cuts = [0, num_bytes // 2 - 12, 3 * num_bytes // 4 + 4, num_bytes]
    return {
        (f"tensor{index}", "values"): torch.arange(stop - start, device=device).to(torch.uint8)
        for index, (start, stop) in enumerate(pairwise(cuts))
    }


def staging_rates(num_bytes: int, device: torch.device) -> tuple[float, float]:
    """Bytes per second of reading state into sealed chunks, and of taking verified chunks in."""
    packed, staging = PackedState(entries_of(num_bytes, device)), Staging(device)
    key = 0, StateKind.PARAMETER
    cuts = streams.chunks(0, num_bytes)
    chunk = torch.zeros(streams.CHUNK_BYTES, dtype=torch.uint8, pin_memory=device.type == "cuda")

    def read() -> None:
        for _ in Sealer(device, streams.MOST_IN_FLIGHT).sealed((packed, begin, end) for begin, end in cuts):
            pass

    def take() -> None:
        turn = staging.begin(0, {key})
        staging.describe(turn, key, packed.header, SOURCE)
        for begin, end in cuts:
            staging.take(turn, key, begin, chunk[: end - begin])

    return rate(read, num_bytes, device), rate(take, num_bytes, device)


def messages(member: Member, num_bytes: int, message_bytes: int, is_staged: bool) -> tuple[float, float]:
    """When this worker began and ended to send or receive nothing but messages, in buffers that are there already.

    Args:
        member: one of the two.
        num_bytes: in all.
        message_bytes: of each message.
        is_staged: whether each is copied from the device before it is sent, and to the device once it was received.
    """
    groups, device = member.groups, torch.device(member.kept["device"])
    assert groups is not None
    group: GlooGroup = groups._groups[SOURCE, TARGET]
    is_source, depth = member.name == SOURCE, streams.MOST_IN_FLIGHT
    place = torch.full((num_bytes,), 1, dtype=torch.uint8, device=device).split(message_bytes)
    is_pinned = device.type == "cuda"
    buffers = [torch.ones(message_bytes, dtype=torch.uint8, pin_memory=is_pinned) for _ in range(depth)]
    groups.all_reduce(torch.zeros(1))
    began = time.monotonic()
    under_way: deque[tuple[int, torch.distributed.Work]] = deque()

    def end_one() -> None:
        number, work = under_way.popleft()
        work.wait()
        if is_staged and not is_source:
            place[number].copy_(buffers[number % depth])

    for number in range(len(place)):
        if len(under_way) == depth:
            end_one()
        if is_staged and is_source:
            buffers[number % depth].copy_(place[number])
        start = group.send if is_source else group.recv
        under_way.append((number, start([buffers[number % depth]], int(is_source), number)))
    while under_way:
        end_one()
    return began, time.monotonic()


def hold(member: Member, num_bytes: int, device: str) -> None:
    """Have the state of some layers at hand on the device; a target has room for it there."""
    num_layers = max(num_bytes // LAYER_BYTES, 1)
    member.kept["device"] = torch.device(device)
    member.kept["state"] = {
        (layer, kind): entries_of(num_bytes // num_layers // len(KINDS), torch.device(device))
        for layer in range(num_layers)
        for kind in KINDS
    }


def migrated(member: Member) -> tuple[float, float]:
    """When this worker began and ended its part in moving the state, which lies on the device at both ends."""
    groups, device = member.groups, member.kept["device"]
    assert groups is not None
    state: dict[tuple[int, StateKind], StateEntries] = member.kept["state"]
    transfers = tuple(
        Transfer(source=SOURCE, target=TARGET, layer=layer, kind=kind, num_bytes=PackedState(entries).num_bytes)
        for (layer, kind), entries in state.items()
    )

    groups.all_reduce(torch.zeros(1))
    began = time.monotonic()
    arrived = migrate(
        Migration(transfers=transfers),
        member.name,
        Staging(device),
        version=0,
        export=lambda layer, kind: state[layer, kind],
        open_transport=groups.stream_transport,
    )
    ended = time.monotonic()
    for key, entries in arrived.items():
        assert all(torch.equal(value, state[key][name]) for name, value in entries.items()), "state arrived as it was"
    return began, ended


def seconds_of(spans: dict[str, tuple[float, float]]) -> float:
    """From the first beginning to the last end, on the clock that all processes share."""
    return max(ended for _, ended in spans.values()) - min(began for began, _ in spans.values())


def copy_table(sizes: list[int], device: torch.device) -> Table:
    """Plain copies, and the product's staging, at every size."""
    rows: dict[str, list[float]] = {}
    for size in sizes:
        found = dict(host_copies(size)) | (dict(device_copies(size, device)) if device.type == "cuda" else {})
        found["ours: read and sealed"], found["ours: taken in"] = staging_rates(size, device)
        for name, value in found.items():
            rows.setdefault(name, []).append(value / 1e9)
    return Table(
        name="copies",
        title=f"Copies of one block and staging on {device}, GB/s",
        columns=(
            Column(key="copy", title="copy"),
            *(Column(key=f"mebibytes_{size // MEBIBYTE}", title=f"{size // MEBIBYTE} MiB", form=".1f") for size in sizes),
        ),
        rows=tuple((name, *values) for name, values in rows.items()),
        note=f"Medians; one thread. Staged in chunks of {streams.CHUNK_BYTES // MEBIBYTE} MiB.",
    )


def migration_table(num_bytes: int, device: str, repeats: int) -> Table:
    """Messages alone and whole migrations in turn, between the same two processes, and their ratio."""
    ways = [(size, is_staged) for is_staged in (False, True) for size in MESSAGE_BYTES]
    alone: dict[tuple[int, bool], list[float]] = {way: [] for way in ways}
    ours: list[float] = []
    with LocalMembers([SOURCE, TARGET]) as members:
        members.build((SOURCE, TARGET), ())
        members.call(hold, num_bytes, device)
        members.call(migrated)
        for _ in range(repeats):
            for (size, is_staged), seconds in alone.items():
                seconds.append(seconds_of(members.call(messages, num_bytes, size * MEBIBYTE, is_staged)))
            ours.append(seconds_of(members.call(migrated)))
    ceilings = [min(statistics.median(alone[way]) for way in ways if way[1] == is_staged) for is_staged in (False, True)]
    found = [
        (f"messages of {size} MiB{', copied at both ends' if is_staged else ' alone'}", seconds)
        for (size, is_staged), seconds in alone.items()
    ]
    return Table(
        name="migration",
        title=f"{num_bytes // MEBIBYTE} MiB of state from one process to another, on {device} at both ends",
        columns=(
            Column(key="what", title="what"),
            Column(key="seconds", title="median s", form=".3f"),
            Column(key="best_seconds", title="best s", form=".3f"),
            Column(key="gigabytes_per_second", title="GB/s", form=".2f"),
            Column(key="messages_ratio", title="of messages alone", form=".0%"),
            Column(key="staging_ratio", title="of the staging ceiling", form=".0%"),
        ),
        rows=tuple(
            (name, median := statistics.median(seconds), min(seconds), num_bytes / median / 1e9, *(c / median for c in ceilings))
            for name, seconds in [*found, ("ours: a migration", ours)]
        ),
        note=f"{repeats} repetitions in turn. Asked for: {ASKED_RATIO:.0%} of the fastest messages that are copied at both ends.",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Staging and migration of state beside plain copies and messages.")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:1; where the state lies")
    parser.add_argument("--largest-mebibytes", type=at_least(SIZES[0]), default=SIZES[-1], help="of the copies")
    parser.add_argument("--state-mebibytes", type=at_least(MESSAGE_BYTES[-1]), default=512, help="that migrate")
    parser.add_argument("--repeats", type=at_least(1), default=9, help="of messages and migrations")
    parser.add_argument("--output", type=folder, help="a folder for the tables as CSV, each written once it is there")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a migration is slower than is asked for")
    arguments = parser.parse_args()
    require_device(arguments.device)
    torch.set_num_threads(1)
    sizes = [size * MEBIBYTE for size in SIZES if size <= arguments.largest_mebibytes]
    for made in (
        partial(copy_table, sizes, torch.device(arguments.device)),
        partial(migration_table, arguments.state_mebibytes * MEBIBYTE, arguments.device, arguments.repeats),
    ):
        table = made()
        print(table.markdown(), flush=True)
        if arguments.output is not None:
            table.write_csv(arguments.output)
    print(f"{description(arguments.device)}; load at the end {os.getloadavg()[0]:.1f}.")
    ratio = table.rows[-1][-1]
    assert isinstance(ratio, float)
    if arguments.check and ratio < ASKED_RATIO:
        sys.exit(f"missed: a migration reaches {ratio:.0%} of the staging ceiling, asked {ASKED_RATIO:.0%}")


if __name__ == "__main__":
    try:
        main()
    except InvalidInputError as error:
        raise SystemExit(str(error)) from error
