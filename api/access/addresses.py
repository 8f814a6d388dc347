"""Where requests come from, and where the service listens."""

from collections.abc import Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Scope

from kintsugi.core.errors import ForbiddenError

Network = IPv4Network | IPv6Network
Address = IPv4Address | IPv6Address

SUBSCRIBER_BITS = 64
"""Of an IPv6 address, those that a network is given; the rest its owner may choose at will."""
KNOWN_HOSTS = 256
"""Hosts of which it is remembered whether they are this machine."""


@lru_cache(KNOWN_HOSTS)
def is_loopback(host: str) -> bool:
    """Whether nobody but this machine reaches what listens on `host`."""
    address = _address(host)
    return host.lower() == "localhost" if address is None else address.is_loopback


def names_this_machine(authority: str) -> bool:
    """Whether a `Host` header calls the service by a name that every machine has for itself, at whatever port."""
    try:
        name = urlsplit(f"//{authority}").hostname
    except ValueError:
        return False
    return name is not None and is_loopback(name)


def require_own_name(scope: Scope, proxies: Sequence[Network]) -> None:
    """Require that a request from this machine calls the service by a name of this machine.

    A page of another site, whose name its owner has made to mean 127.0.0.1, gives that name (DNS rebinding).

    Raises:
        ForbiddenError: it calls it by another name.
    """
    peer, host = scope["client"][0] if scope.get("client") else "", Headers(scope=scope).get("host", "")
    if not host or names_this_machine(host) or not is_loopback(peer) or is_trusted(peer, proxies):
        return
    message = (
        f"{host[:200]} is no name of this machine: say localhost or 127.0.0.1, send a token (`kintsugi token create`), or list "
        "the proxy that the request comes through in KINTSUGI_TRUSTED_PROXIES"
    )
    raise ForbiddenError(message, field="Host")


def address_of(scope: Scope, proxies: Sequence[Network]) -> str:
    """The address that a request comes from.

    `X-Forwarded-For` counts only as far as trusted proxies wrote it: from its end, up to the first address that is none.
    """
    peer = scope["client"][0] if scope.get("client") else "local"
    if not is_trusted(peer, proxies):
        return peer
    told = ",".join(Headers(scope=scope).getlist("x-forwarded-for"))
    for hop in reversed([part.strip() for part in told.split(",")]):
        if _address(hop) is None:
            break
        peer = hop
        if not is_trusted(hop, proxies):
            break
    return peer


def scheme_of(scope: Scope, proxies: Sequence[Network]) -> str:
    """Http or https, as the client's browser sees it: a trusted proxy may say so."""
    peer = scope["client"][0] if scope.get("client") else ""
    told = Headers(scope=scope).get("x-forwarded-proto", "")
    return told if told in ("http", "https") and is_trusted(peer, proxies) else str(scope["scheme"])


def is_trusted(peer: str, proxies: Sequence[Network]) -> bool:
    """Whether `peer` is one of the proxies."""
    address = _address(peer)
    return address is not None and any(address in network for network in proxies if network.version == address.version)


def neighbourhood(address: str) -> str:
    """What shares one rate: an IPv4 address, or the IPv6 network that one subscriber has."""
    parsed = _address(address)
    if isinstance(parsed, IPv6Address):
        return str(ip_network((parsed, SUBSCRIBER_BITS), strict=False))
    return address


def _address(text: str) -> Address | None:
    try:
        address = ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address
