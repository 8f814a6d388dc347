"""The sending side of a replication: a copy of the state and the reductions since, told to each joining worker."""

import threading
from collections.abc import Callable, Collection, Mapping
from typing import Any

import xxhash

from kintsugi.core.errors import KintsugiError
from kintsugi.core.logs import get_logger
from kintsugi.core.overlay import Overlay, Replication, WorkerState
from kintsugi.runtime.overlay.committed import Committed, Sum
from kintsugi.runtime.overlay.following import FORGOTTEN, Telling
from kintsugi.runtime.overlay.history import History, Key
from kintsugi.runtime.overlay.links import Links
from kintsugi.runtime.overlay.messages import NO_BYTES, Channel, Message
from kintsugi.runtime.overlay.options import OverlayOptions
from kintsugi.runtime.overlay.ranges import ByteRange, Ranges, ranges_of, united, without
from kintsugi.runtime.overlay.shares import share_ranges
from kintsugi.runtime.overlay.snapshot import Snapshot
from restorer.packing import PackedState

OPEN, SHARD, SEAL, GONE, FETCH, RELEASE = "open", "shard", "seal", "gone", "fetch", "release"
SEALED_BYTES = 16 * 2**20
"""What one hash covers; so much arrives again at most when a source is lost."""


class Sources:
    """What this worker sends to those that join."""

    def __init__(self, worker: str, links: Links, options: OverlayOptions) -> None:
        self._worker, self._links, self._options = worker, links, options
        self._streams: dict[Key, _Stream] = {}
        self._seen: set[Key] = set()
        self._snapshot: Snapshot | None = None
        self._copying: list[Snapshot] = []
        """Copies of which the live state may still be read."""
        self._history = History(options.max_waiting_bytes, options.reduction_timeout_seconds / 2)
        self._tellings: dict[Key, Telling] = {}
        self._sending: list[threading.Thread] = []
        self._lock = threading.Lock()

    @property
    def joiners(self) -> tuple[str, ...]:
        """Whom it sends to."""
        with self._lock:
            return tuple(sorted(joiner for joiner, _ in self._streams))

    def begin(self, overlay: Overlay, wanted: Collection[Key], at: Sum, packed: Callable[[], PackedState]) -> None:
        """Begin those replications that have not begun: this is the boundary of which the state is copied.

        Args:
            overlay: that takes effect here, the same on all sources.
            wanted: those that have not ended since.
            at: the last reduction that the state has seen.
            packed: gives the live state.
        """
        for replication in overlay.replications:
            key = replication.joiner, replication.generation
            if key in self._seen:
                continue
            self._seen.add(key)
            sources = {share.source for share in replication.shares}
            if self._worker in sources and key in wanted:
                is_fastest = overlay.synchronization.parents.get(replication.joiner) == self._worker
                self._history.follow(key, at, is_told=is_fastest)
                try:
                    self._start(key, replication, at, packed)
                except Exception as error:  # what the user's optimizer keeps, or want of memory: this worker trains on
                    self._refuse(key, str(error))

    def keep(self, committed: Committed, members: Collection[str]) -> None:
        """Keep a reduction for those that follow; who took part in it follows no more."""
        for key in self._history.followers:
            if key[0] in members:
                self._end_following(key)
        self._history.add(committed)

    def fetch(self, joiner: str, fields: Mapping[str, Any]) -> None:
        """A joining worker asks for ranges that another source did not send, or not soon enough."""
        stream = self._stream(joiner, fields)
        if stream is None:
            self._links.tell(joiner, GONE, {"replication": fields["replication"]})
        else:
            stream.send(ranges_of(fields))

    def release(self, joiner: str, fields: Mapping[str, Any]) -> None:
        """A joining worker gets ranges from another source."""
        stream = self._stream(joiner, fields)
        if stream is not None:
            stream.release(ranges_of(fields))

    def follow(self, joiner: str, fields: Mapping[str, Any]) -> None:
        """A joining worker asks for reductions: behind `after`, with a new beginning, and as far as `up_to`."""
        key = joiner, int(fields["replication"])
        with self._lock:
            telling = self._tellings.get(key)
            if "after" in fields and key in self._history.followers:
                if telling is not None:
                    telling.close()
                after, chunk_bytes = Sum(*fields["after"]), self._options.chunk_bytes
                telling = self._tellings[key] = Telling(key, self._history, self._links, after=after, chunk_bytes=chunk_bytes)
        if telling is None:
            self._links.tell(joiner, FORGOTTEN, {"replication": key[1], "why": "nothing is kept for it"})
        else:
            telling.allow(int(fields["up_to"]))

    def spare(self, joiner: str, fields: Mapping[str, Any]) -> None:
        """A joining worker is told the reductions by another source."""
        self._history.spare((joiner, int(fields["replication"])))

    def heed(self, overlay: Overlay) -> None:
        """End what this overlay does not want any more."""
        wanted = keys(overlay)
        self.retain(wanted)
        active = {one.id for one in overlay.workers if one.state is WorkerState.ACTIVE}
        linked = overlay.neighbors(self._worker)
        for key in self._history.followers:
            if key[0] not in linked or (key not in wanted and key[0] not in active):
                self._end_following(key)

    def retain(self, wanted: Collection[Key]) -> None:
        """End streams of replications that are over, and let go of copies that nobody reads any more."""
        with self._lock:
            over = [key for key in self._streams if key not in wanted]
            ended = [self._streams.pop(key) for key in over]
            if not self._streams:
                self._snapshot = None
        for stream in ended:
            stream.close()

    def finish_copies(self) -> None:
        """Wait until the live state may change: also for a copy that nobody needs any more, of which a shard may be on its way."""
        with self._lock:
            copying, self._copying = self._copying, []
        for snapshot in copying:
            snapshot.finish()

    def close(self) -> None:
        """End all streams."""
        self.retain(())
        for key in self._history.followers:
            self._end_following(key)

    def await_end(self, timeout_seconds: float) -> None:
        """Wait, once it is closed and the links are, until nothing of the state is read any more; each thread so long at most."""
        for thread in self._sending:
            if thread is not threading.current_thread():
                thread.join(timeout_seconds)

    def _stream(self, joiner: str, fields: Mapping[str, Any]) -> "_Stream | None":
        with self._lock:
            return self._streams.get((joiner, int(fields["replication"])))

    def _end_following(self, key: Key) -> None:
        with self._lock:
            telling = self._tellings.pop(key, None)
        if telling is not None:
            telling.close()
        self._history.leave(key)

    def _refuse(self, key: Key, why: str) -> None:
        """Tell a joining worker that the state cannot be sent, which no other copy of it mends."""
        self._end_following(key)
        get_logger("kintsugi.overlay").warning("cannot send its state", worker=self._worker, joiner=key[0], why=why)
        self._links.tell(key[0], GONE, {"replication": key[1], "why": why})

    def _start(self, key: Key, replication: Replication, at: Sum, packed: Callable[[], PackedState]) -> None:
        state = packed()
        own = share_ranges(replication, state.num_bytes)[self._worker]
        with self._lock:
            snapshot = self._snapshot
            if snapshot is None or snapshot.at != at or not snapshot.holds(own):
                snapshot = Snapshot(state, at, own, is_whole=self._options.copies_whole_state)
                self._snapshot = snapshot
                self._copying.append(snapshot)
            stream = self._streams[key] = _Stream(key, snapshot, own, self._links, self._options)
            self._sending = [*(thread for thread in self._sending if thread.is_alive()), stream.thread]


def keys(overlay: Overlay) -> frozenset[Key]:
    """The replications under way."""
    return frozenset((one.joiner, one.generation) for one in overlay.replications)


class _Stream:
    """Sends ranges of one copy to one joining worker, in the background."""

    def __init__(self, key: Key, snapshot: Snapshot, first: Ranges, links: Links, options: OverlayOptions) -> None:
        """Begin with the ranges that the plan gives to this source."""
        self._joiner, self._generation = key
        self._snapshot, self._links, self._options = snapshot, links, options
        self._planned = self._wanted = first
        self._changed = threading.Condition()
        self._is_closed = False
        self.thread = threading.Thread(target=self._run, name=f"overlay-sends-{self._joiner}", daemon=True)
        self.thread.start()

    def send(self, ranges: Ranges) -> None:
        """Send these bytes, too."""
        if not self._snapshot.holds(ranges):
            self._tell_gone()
            return
        with self._changed:
            self._wanted = united(self._wanted, ranges)
            self._changed.notify_all()

    def release(self, ranges: Ranges) -> None:
        """Do not send these bytes, as far as they did not go already: another source does."""
        with self._changed:
            self._wanted = without(self._wanted, ranges)

    def close(self) -> None:
        """Send nothing more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            self._open()
            while (chunk := self._first()) is not None:
                self._send_stretch(chunk)
        except KintsugiError:
            self._tell_gone()

    def _open(self) -> None:
        snapshot = self._snapshot
        described = {
            "header": snapshot.header.decode(),
            "round": snapshot.at.number,
            "attempt": snapshot.at.attempt,
            "ranges": self._planned,
        }
        self._put(OPEN, {**described, "is_whole": snapshot.holds(((0, snapshot.num_bytes),))})

    def _send_stretch(self, first: ByteRange) -> None:
        """Send chunks that follow each other, and a hash of all of them."""
        seal, (begin, end) = xxhash.xxh3_128(), first
        chunk: ByteRange | None = first
        while chunk is not None:
            payload = self._snapshot.read(*chunk, self._options.link_timeout_seconds)
            seal.update(payload)
            self._put(SHARD, {"at": chunk[0]}, payload)
            end = chunk[1]
            chunk = self._following(end) if end - begin < SEALED_BYTES else None
        self._put(SEAL, {"begin": begin, "end": end, "xxh3": seal.hexdigest()})

    def _first(self) -> ByteRange | None:
        """The next chunk, once there is one; None when nothing more is wanted."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._wanted)
            return None if self._is_closed else self._taken()

    def _following(self, at: int) -> ByteRange | None:
        """The chunk that begins there, if it is wanted."""
        with self._changed:
            is_wanted = self._wanted and self._wanted[0][0] == at and not self._is_closed
            return self._taken() if is_wanted else None

    def _taken(self) -> ByteRange:
        begin, end = self._wanted[0]
        chunk = begin, min(begin + self._options.chunk_bytes, end)
        self._wanted = without(self._wanted, (chunk,))
        return chunk

    def _tell_gone(self) -> None:
        self._links.tell(self._joiner, GONE, {"replication": self._generation})

    def _put(self, kind: str, fields: Mapping[str, Any], payload: memoryview = NO_BYTES) -> None:
        self._links.send(self._joiner, Message(Channel.SHARDS, kind, {"replication": self._generation, **fields}, payload))
