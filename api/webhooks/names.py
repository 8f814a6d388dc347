"""The addresses of names, looked up in threads of their own: resolvers that are away take minutes, and hold up no other name."""

import asyncio
import socket
import threading
from concurrent.futures import Future
from ipaddress import ip_address

import httpcore2

from api.webhooks.urls import Address, address_of

MOST_LOOK_UPS = 128
"""Names that are looked up at the same time, those included that nobody waits for any more."""


class Names:
    """Whoever asks for a name that is being looked up waits for the same answer; used by one event loop."""

    def __init__(self) -> None:
        self._under_way: dict[str, Future[list[Address]]] = {}

    async def addresses(self, host: str) -> list[Address]:
        """What a host is, or is called.

        Raises:
            httpcore2.ConnectError: nobody knows the name, or too many are being looked up.
        """
        address = address_of(host)
        if address is not None:
            return [address]
        try:
            return await asyncio.wrap_future(self._look_up(host))
        except (OSError, RuntimeError, UnicodeError) as error:
            raise httpcore2.ConnectError(f"{host} cannot be resolved: {error}") from error

    def _look_up(self, host: str) -> Future[list[Address]]:
        """The look-up of a name that is under way, begun where there is none; a stopping service waits for none."""
        under_way = {name: found for name, found in self._under_way.items() if not found.done()}
        if host not in under_way:
            if len(under_way) >= MOST_LOOK_UPS:
                raise httpcore2.ConnectError(f"{host} is not looked up: {MOST_LOOK_UPS} other names are still")
            found: Future[list[Address]] = Future()
            found.set_running_or_notify_cancel()  # so that nobody who leaves ends it for the others
            threading.Thread(target=_resolve, args=(host, found), name="look-up", daemon=True).start()
            under_way[host] = found
        self._under_way = under_way
        return under_way[host]


def _resolve(host: str, found: "Future[list[Address]]") -> None:
    try:
        places = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        texts = dict.fromkeys(str(place[0]).partition("%")[0] for *_, place in places)
        found.set_result([ip_address(text) for text in texts])
    except Exception as error:
        found.set_exception(error)
