"""Bare HTTP connections, without all that a client library would add to the time that is measured."""

import asyncio
from dataclasses import dataclass
from urllib.parse import urlsplit

PATIENCE_SECONDS = 60.0


@dataclass(slots=True)
class Connection:
    """One HTTP connection."""

    host: str
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def to(cls, url: str) -> "Connection":
        """A connection to a service."""
        parts = urlsplit(url)
        return cls(parts.netloc, *await asyncio.open_connection(parts.hostname, parts.port, limit=2**22))

    async def ask(self, method: str, path: str, body: str = "") -> tuple[int, bytes]:
        """Status and body of one answer."""
        self._send(method, path, body)
        async with asyncio.timeout(PATIENCE_SECONDS):
            status, length = await self._head()
            return status, await self.reader.readexactly(length)

    async def listen(self, kind: str) -> bytes:
        """The data of the next message of this kind on a stream of server-sent events."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            line = b""
            while line != f"event: {kind}\n".encode():
                line = await self.reader.readline()
            return await self.reader.readline()

    async def open_stream(self, path: str) -> None:
        """Ask for a stream, and wait until it begins."""
        self._send("GET", path, "")
        async with asyncio.timeout(PATIENCE_SECONDS):
            status, _ = await self._head()
        assert status == 200, status
        await self.listen("begin")

    def close(self) -> None:
        """End the connection."""
        self.writer.close()

    def _send(self, method: str, path: str, body: str) -> None:
        head = f"{method} {path} HTTP/1.1\r\nHost: {self.host}\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(body)}\r\n\r\n"
        self.writer.write((head + body).encode())

    async def _head(self) -> tuple[int, int]:
        """Status and length of an answer; a stream has none."""
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        length = next((int(line.partition(":")[2]) for line in lines if line.startswith("content-length:")), 0)
        return int(lines[0].split()[1]), length
