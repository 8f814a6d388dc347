"""What a webhook's URL may be, and the address that its host spells out, in whatever way."""

import re
import socket
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import SplitResult, urlsplit

from kintsugi.core.errors import InvalidInputError

Address = IPv4Address | IPv6Address

MOST_URL_LETTERS = 2_000
MOST_NAME_LETTERS = 253
LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")
NUMBER = re.compile(r"[0-9]+|0[xX][0-9a-fA-F]*")
"""A last label that makes the host an address or nothing (the URL standard: it ends in a number)."""


def split_url(url: str) -> SplitResult:
    """The parts of a URL that a webhook may send to.

    Raises:
        InvalidInputError: it is no http or https URL, names a user, a fragment or no host that could be; what belongs to a
            password is not told.
    """
    parts = _parts(url)
    if parts.username is not None or parts.password is not None:
        message = "names a user; leave the user out: what is sent is signed with the webhook's secret, which tells who sends it"
        raise InvalidInputError(message, field="url")
    if parts.fragment:
        raise _no_url(url, "has a fragment, which is never sent; leave out what follows the #")
    if address_of(parts.hostname or "") is None and not _is_name(parts.hostname or ""):
        raise _no_url(url, "names no host that could be; write it as https://receiver.example:8443/hook")
    return parts


def receiver_of(url: str) -> str:
    """A URL without what may be a secret, which many have in their path or query: the server, and `...` for the rest."""
    parts = urlsplit(url)
    is_whole = parts.path in ("", "/") and not parts.query
    return url if is_whole else f"{parts.scheme}://{parts.netloc}/..."


def address_of(host: str) -> Address | None:
    """The address that a host is, as resolvers read it (127.1, 0x7f.1 and 2130706433 are 127.0.0.1); None for a name."""
    plain = host.removesuffix(".")
    try:
        return ip_address(plain)
    except ValueError:
        pass
    if not NUMBER.fullmatch(plain.rpartition(".")[2]):
        return None
    try:
        return IPv4Address(socket.inet_aton(plain))
    except OSError:
        return None


def _parts(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        has_port = parts.port != 0
    except ValueError:
        raise _no_url(url, "is no URL, or names a port that cannot be") from None
    if not url.isascii() or not url.isprintable() or " " in url or len(url) > MOST_URL_LETTERS:
        raise _no_url(
            url, f"must be at most {MOST_URL_LETTERS} printable ASCII letters; write others as %20 or, in a host, as xn--"
        )
    if parts.scheme not in ("http", "https") or not has_port:
        raise _no_url(url, "must be an http or https URL, of a port from 1 where it names one")
    return parts


def _is_name(host: str) -> bool:
    labels = host.removesuffix(".").split(".")
    return len(host) <= MOST_NAME_LETTERS and all(map(LABEL.fullmatch, labels)) and not NUMBER.fullmatch(labels[-1])


def _no_url(url: str, message: str) -> InvalidInputError:
    return InvalidInputError(message, field="url", value=re.sub("//[^/]*@", "//", url)[:200])
