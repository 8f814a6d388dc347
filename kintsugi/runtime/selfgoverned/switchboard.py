"""Through it the members of an attempt find each other and learn that all are ready: one of them serves the others.

One thread with an event loop, both for serving and for being served. Lines of JSON over TCP; every attempt has connections of
its own, which end with it. Nothing waits for an answer here: whoever serves may be lost, and the ring says so.
"""

import asyncio
import json
import socket
import threading
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from kintsugi.core import codec
from kintsugi.core.errors import InvalidInputError
from kintsugi.runtime.messages import Delivered
from kintsugi.runtime.reach import Address
from kintsugi.runtime.selfgoverned.table import Table

_MOST_BYTES = 1 << 26
"""Of a line: the addresses of a group of a thousand workers, each of whom has one for each other, are a quarter of that."""
_CLOSE_SECONDS = 2.0
"""For the thread to end."""


@dataclass(frozen=True, slots=True)
class AllReady:
    """All members of an attempt are ready."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Unserved:
    """The connection to whoever serves an attempt could not be made, or broke."""

    attempt: int
    reason: str


FromSwitchboard = Delivered | AllReady | Unserved


@dataclass(slots=True)
class _Line:
    """The connection of one attempt to whoever serves it; what is said before it stands waits."""

    attempt: int
    waiting: list[bytes] = field(default_factory=list)
    writer: asyncio.StreamWriter | None = None
    task: "asyncio.Task[None] | None" = None

    def say(self, message: Mapping[str, Any]) -> None:
        line = _encoded(message)
        if self.writer is None:
            self.waiting.append(line)
        else:
            self.writer.write(line)

    def end(self) -> None:
        if self.task is not None:
            self.task.cancel()


@dataclass(frozen=True, slots=True)
class _Hello:
    """What a member says first to whoever serves."""

    attempt: int
    worker: str
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Published:
    """A key and its value, for all members."""

    key: str
    value: str


class Switchboard:
    """One worker's."""

    def __init__(self, worker: str, host: str, hear: Callable[[FromSwitchboard], None]) -> None:
        """`hear` is called in the switchboard's thread.

        Raises:
            OSError: the host has no such address.
        """
        self._worker = worker
        self._hear = hear
        self._socket = socket.create_server((host, 0))
        self.address: Address = (host, self._socket.getsockname()[1])
        """Where others are served."""
        self._line: _Line | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        """Of all connections, in either direction."""
        self._tables: dict[int, tuple[Table, dict[str, asyncio.StreamWriter]]] = {}
        self._closing = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="switchboard", daemon=True)
        self._thread.start()

    def join(self, attempt: int, members: tuple[str, ...], served_by: Address) -> None:
        """Take part in an attempt; the one before is over."""
        self._loop.call_soon_threadsafe(self._join, attempt, members, served_by)

    def publish(self, message: Delivered) -> None:
        """Tell the members of a key's group."""
        value = b64encode(message.value).decode()
        self._say(message.attempt, {"key": message.key, "value": value})

    def ready(self, attempt: int) -> None:
        """Say that this worker is."""
        self._say(attempt, {"ready": True})

    def close(self) -> None:
        """End all connections, and the thread."""
        with suppress(RuntimeError):  # closed before
            self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join(_CLOSE_SECONDS)

    def _say(self, attempt: int, message: Mapping[str, Any]) -> None:
        def say() -> None:
            if self._line is not None and self._line.attempt == attempt:
                self._line.say(message)

        self._loop.call_soon_threadsafe(say)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._until_closed())
        finally:
            self._loop.close()

    async def _until_closed(self) -> None:
        server = await asyncio.start_server(self._answer, sock=self._socket, limit=_MOST_BYTES)
        await self._closing.wait()
        server.close()
        await self._end_all()
        await server.wait_closed()

    async def _end_all(self) -> None:
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        writers = tuple(self._writers)
        for writer in writers:
            self._close(writer)
        await asyncio.gather(*tasks, *(writer.wait_closed() for writer in writers), return_exceptions=True)

    # The side that is served.

    def _join(self, attempt: int, members: tuple[str, ...], served_by: Address) -> None:
        if self._line is not None:
            self._line.end()
        self._line = line = _Line(attempt)
        line.say({"attempt": attempt, "worker": self._worker, "members": list(members)})
        line.task = self._loop.create_task(self._listen(line, served_by))

    async def _listen(self, line: _Line, served_by: Address) -> None:
        try:
            reader, writer = await asyncio.open_connection(*served_by, limit=_MOST_BYTES)
        except OSError as error:
            self._hear(Unserved(line.attempt, str(error)))
            return
        line.writer = writer
        self._writers.add(writer)
        try:
            writer.writelines(line.waiting)
            while text := await reader.readline():
                self._take(line.attempt, _message(text))
            self._hear(Unserved(line.attempt, "the connection was closed"))
        except (OSError, ValueError) as error:  # which a line is that is none, or too long
            self._hear(Unserved(line.attempt, str(error)))
        finally:
            self._close(writer)

    def _take(self, attempt: int, message: Mapping[str, Any]) -> None:
        for key, value in message.get("keys", {}).items():
            self._hear(Delivered(attempt, key, b64decode(value)))
        if "go" in message:
            self._hear(AllReady(attempt))

    # The side that serves.

    def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        task = self._loop.create_task(self._serve(reader, writer))
        task.add_done_callback(lambda _: self._close(writer))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Until whoever called hangs up, or says what no member says."""
        with suppress(OSError, ValueError, InvalidInputError):
            hello = codec.loads(_Hello, await reader.readline())
            table, writers = self._table(hello)
            writers[hello.worker] = writer
            while text := await reader.readline():
                message = _message(text)
                if "key" in message:
                    published = codec.decode(_Published, message)
                    told = table.publish(published.key, published.value)
                else:
                    told = table.ready(hello.worker)
                for member, telling in told:
                    writers[member].write(_encoded(telling))

    def _close(self, writer: asyncio.StreamWriter) -> None:
        self._writers.discard(writer)
        writer.close()

    def _table(self, hello: _Hello) -> tuple[Table, dict[str, asyncio.StreamWriter]]:
        attempt = hello.attempt
        for over in [earlier for earlier in self._tables if earlier < attempt]:
            del self._tables[over]
        return self._tables.setdefault(attempt, (Table(frozenset(hello.members)), {}))


def _encoded(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def _message(text: bytes) -> dict[str, Any]:
    """What a line says.

    Raises:
        ValueError: it is no message.
    """
    said = codec.parsed(text)
    if not isinstance(said, dict):
        raise ValueError("is no message")
    return said
