"""What torchrun is told of the service where its agents meet: looked at before anybody is asked."""

import os
from pathlib import Path

from torch.distributed.elastic.rendezvous import RendezvousParameters

from kintsugi.client.connection import TOKEN_VARIABLE, checked_address
from kintsugi.core.errors import InvalidInputError, cause_of

DEFAULT_PORT = 8000
LONGEST_ID_BYTES = 150
"""The service takes names of at most 200 letters, and in base64 every three bytes are four of them."""
NO_ID = "none"
"""What torchrun says where no id is given."""
OPTIONS = (
    "close_timeout",
    "heartbeat_timeout",
    "join_timeout",
    "keep_alive_interval",
    "keep_alive_max_attempt",
    "last_call_timeout",
    "scheme",
    "token_file",
)
WITHOUT_EFFECT = ("is_host", "rank", "read_timeout", "store_type", "timeout")
"""What torch itself, or who used another of its rendezvous before, says as well."""


def check(params: RendezvousParameters) -> None:
    """Require an id that is this run's own, and options that there are.

    Raises:
        InvalidInputError: the id is no run's own or too long, or an option is unknown.
    """
    if params.run_id == NO_ID:
        message = (
            f"is {NO_ID!r} where none is given, for everybody who meets at this service; give all agents of a run one that is "
            'new, such as --rdzv-id "run-$(date +%s)"'
        )
        raise InvalidInputError(message, field="--rdzv-id", value=params.run_id)
    if (size := len(params.run_id.encode())) > LONGEST_ID_BYTES:
        message = f"must have at most {LONGEST_ID_BYTES} bytes, not {size}; give all agents of the run a shorter one"
        raise InvalidInputError(message, field="--rdzv-id", value=params.run_id)
    for name, value in params.config.items():
        if name not in (*OPTIONS, *WITHOUT_EFFECT):
            raise InvalidInputError(f"is no option; there are {', '.join(OPTIONS)}", field=f"--rdzv-conf {name}", value=value)


def url_of(params: RendezvousParameters) -> str:
    """Where the service is.

    Raises:
        InvalidInputError: the endpoint is no address, or the scheme is neither http nor https, or another than the endpoint's.
    """
    told, mark, place = params.endpoint.strip().rpartition("://")
    scheme = params.get("scheme", told or "http")
    if scheme not in ("http", "https") or told not in ("", scheme):
        message = f"must be http or https, the same that --rdzv-endpoint begins with if it is a URL, not {scheme!r}"
        raise InvalidInputError(
            message, field="--rdzv-conf scheme" if "scheme" in params.config else "--rdzv-endpoint", value=scheme
        )
    if not mark and not place.rpartition(":")[2].isdecimal():
        place = f"{place}:{DEFAULT_PORT}"
    url = f"{scheme}://{place.rstrip('/')}"
    try:
        checked_address(url)
    except InvalidInputError as error:
        message = f"must be HOST:PORT or the URL of a Kintsugi service, such as 127.0.0.1:8000, not {params.endpoint!r}"
        raise InvalidInputError(message, field="--rdzv-endpoint", value=params.endpoint) from error
    return url


def token_of(params: RendezvousParameters) -> str | None:
    """The token for the service: that in `token_file`, else what the variable holds from which all clients take it.

    Raises:
        InvalidInputError: the file cannot be read, or is empty.
    """
    path = params.get("token_file")
    if path is None:
        return os.environ.get(TOKEN_VARIABLE)
    try:
        token = Path(path).read_text().strip()
    except (OSError, UnicodeError) as error:
        message = f"{path} cannot be read ({cause_of(error)}); name the file of a token, or set {TOKEN_VARIABLE} instead"
        raise InvalidInputError(message, field="--rdzv-conf token_file", value=path) from error
    if not token:
        raise InvalidInputError(f"{path} is empty; write a token into it", field="--rdzv-conf token_file", value=path)
    return token
