"""Who can be reached: a socket that anybody may connect to, and attempts to connect to those of others."""

import errno
import selectors
import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress

Address = tuple[str, int]
"""Host and TCP port."""

_BACKLOG = 4096
"""More than two rounds of attempts leave behind with a thousand workers each; the system may allow less (somaxconn)."""


class Doorbell:
    """A listening socket that the operating system answers at, even while its process is busy or stopped."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._socket = socket.socket()
        self._socket.setblocking(False)
        self.address: Address | None = None
        """Null where the host has no such address."""
        with suppress(OSError):
            self._socket.bind((host, 0))
            self._socket.listen(_BACKLOG)
            self.address = (host, self._socket.getsockname()[1])

    def close(self) -> None:
        """Nobody can connect from now on."""
        self._socket.close()

    def unreachable(self, addresses: Mapping[str, Address], timeout_seconds: float) -> tuple[str, ...]:
        """Those that do not answer within the time, in the order given; all are tried at once."""
        self._clear()
        with ExitStack() as stack, selectors.DefaultSelector() as selector:
            for name, address in addresses.items():
                connection = stack.enter_context(socket.socket())
                if self._begin(connection, address):
                    selector.register(connection, selectors.EVENT_WRITE, name)
            reached = _connected(selector, timeout_seconds)
        return tuple(name for name in addresses if name not in reached)

    def _clear(self) -> None:
        """Drop the connections of earlier attempts, which nobody talks on."""
        with suppress(OSError):
            while True:
                self._socket.accept()[0].close()

    def _begin(self, connection: socket.socket, address: Address) -> bool:
        """Whether the connection is under way, from this worker's own address."""
        connection.setblocking(False)
        try:
            connection.bind((self._host, 0))
            return connection.connect_ex(address) in (0, errno.EINPROGRESS)
        except OSError:
            return False


def _connected(selector: selectors.BaseSelector, timeout_seconds: float) -> set[str]:
    """Those that have answered when the time is over, however late this thread itself comes to look."""
    reached: set[str] = set()
    deadline = time.monotonic() + timeout_seconds
    while selector.get_map():
        left = deadline - time.monotonic()
        answers = selector.select(max(left, 0.0))
        if not answers and left <= 0:
            break
        for key, _ in answers:
            assert isinstance(key.fileobj, socket.socket)
            selector.unregister(key.fileobj)
            if key.fileobj.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                reached.add(key.data)
    return reached
