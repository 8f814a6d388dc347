"""Where the scheduler answers, and where this worker does."""

import socket
from collections.abc import Sequence
from urllib.parse import urlsplit

from kintsugi.core import checks
from kintsugi.core.errors import InvalidInputError
from kintsugi.runtime.overlay.scheduler import Scheduler


def urls_of(service: str | Sequence[str] | Scheduler) -> tuple[str, ...]:
    """Where the scheduler answers; none where it is an object of this process.

    Raises:
        InvalidInputError: it is neither, or no URL at which one could answer.
    """
    urls = (service,) if isinstance(service, str) else tuple(service) if isinstance(service, Sequence) else ()
    if not urls and not hasattr(service, "close"):
        raise InvalidInputError("must be the scheduler's URL, such as http://127.0.0.1:8000", field="service", value=repr(service))
    for url in urls:
        checks.service_url("service", url)
    return urls


def own_host(urls: Sequence[str]) -> str:
    """The address from which this machine reaches the scheduler; loopback where it has none."""
    first = urls[0] if urls else ""
    place = urlsplit(first)
    if not place.hostname:
        return "127.0.0.1"
    family, _, _, _, address = socket.getaddrinfo(place.hostname, place.port or 80, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probing:
        probing.connect(address)
        host: str = probing.getsockname()[0]
        return host
