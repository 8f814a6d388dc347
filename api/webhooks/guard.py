"""Where webhooks may go: no service is to be talked into calling its own network on somebody's behalf (SSRF)."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network, IPv6Network, ip_network
from typing import Any

import anyio
import httpcore2

from api.webhooks.names import Names
from api.webhooks.urls import Address
from kintsugi.core.errors import InvalidInputError

Network = IPv4Network | IPv6Network

TRANSLATED = IPv6Network("64:ff9b::/96")
"""NAT64 (RFC 6052): the last 32 bits are an IPv4 address."""
GLOBAL_UNICAST = IPv6Network("2000::/3")
"""All that public IPv6 addresses lie in (RFC 4291); outside it are a site's own, and further forms of IPv4 addresses."""
NOT_PUBLIC = tuple(map(ip_network, ("192.0.0.0/24", "192.88.99.0/24", "168.63.129.16/32", "3fff::/20")))
"""What some versions of Python take for public and is not (RFC 6890, 7526 and 9637), and the address of Azure's own hosts: clouds
have services there that tell secrets.
"""

LOOK_UP_SECONDS = 5.0
"""Longest wait for a name as a webhook is added: resolvers that are away take far longer."""


class TargetRefusedError(InvalidInputError):
    """A webhook's URL leads where the service does not send."""


class Guard:
    """Judges addresses: public ones are allowed, loopback and private ones where the settings say so, link-local ones never."""

    def __init__(self, *, loopback: bool, networks: Sequence[Network] = ()) -> None:
        self._loopback = loopback
        self._networks = networks
        self._names = Names()

    def check(self, address: Address) -> None:
        """Refuse an address.

        Raises:
            TargetRefusedError: nothing is sent there.
        """
        inner = _inner(address)
        if inner.is_loopback:
            if not self._loopback:
                raise _refused(address, "is the service's own host, which listens beyond it; use an address that others reach")
        elif inner.is_link_local or inner.is_multicast or inner.is_unspecified:
            raise _refused(address, "is link-local, multicast or unspecified; nothing is sent there")
        elif not _is_public(inner) and not any(inner in network for network in self._networks):
            raise _refused(address, "is private; whoever runs the service can allow its network by KINTSUGI_WEBHOOK_NETWORKS")

    async def addresses(self, host: str) -> list[Address]:
        """Those of a host, each of which something may be sent to.

        Raises:
            TargetRefusedError: one of them is refused.
            httpcore2.ConnectError: nobody knows the name.
        """
        addresses = await self._names.addresses(host)
        for address in addresses:
            self.check(address)
        return addresses

    async def check_host(self, host: str) -> None:
        """Refuse a host that leads now where nothing is sent; a name is judged again whenever something is sent.

        A name that nobody knows, or not soon enough, is let pass: it may be known later.

        Raises:
            TargetRefusedError: nothing is sent there.
        """
        with anyio.move_on_after(LOOK_UP_SECONDS), suppress(httpcore2.ConnectError):
            await self.addresses(host)


class GuardedBackend(httpcore2.AsyncNetworkBackend):
    """Resolves a name, has every address judged, and connects to the judged ones: no second look-up can differ."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._backend = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """A connection to the first address of `host` that answers.

        Raises:
            TargetRefusedError: one of its addresses is refused.
            httpcore2.ConnectError: none answers, or the name is unknown.
        """
        addresses = await self._guard.addresses(host)
        failure: Exception = httpcore2.ConnectError(f"{host} has no address")
        for address in addresses:
            try:
                return await self._backend.connect_tcp(str(address), port, timeout, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failure = error
        raise failure


def _is_public(address: Address) -> bool:
    is_set_aside = any(address in network for network in NOT_PUBLIC)
    return address.is_global and not is_set_aside and (isinstance(address, IPv4Address) or address in GLOBAL_UNICAST)


def _inner(address: Address) -> Address:
    """The IPv4 address inside an IPv6 one that stands for it, else the address itself."""
    if isinstance(address, IPv4Address):
        return address
    if address in TRANSLATED:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


def _refused(address: Address, reason: str) -> TargetRefusedError:
    return TargetRefusedError(reason, field="url", value=str(address))
