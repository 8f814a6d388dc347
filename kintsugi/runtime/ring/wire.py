"""Messages of a ring as bytes: frames of a length, a kind and JSON. Nothing that comes from a socket is executed."""

from collections.abc import Callable, Iterator

from pydantic import TypeAdapter, ValidationError

from kintsugi.core.errors import CommunicationError
from kintsugi.runtime.ring.messages import Accept, Hello, Message, Reconcile, Restart

Frame = Message | str | None
"""A message, the name with which a connection begins, or a sign of life."""

_KINDS: tuple[type[Message], ...] = (Hello, Reconcile, Accept, Restart)
_ADAPTERS: tuple[TypeAdapter[Message], ...] = tuple(TypeAdapter(kind) for kind in _KINDS)
_NAME, _ALIVE = 254, 255
_LENGTH_BYTES = 4
MOST_BYTES = 1 << 24
"""Longer than any message of thousands of members: what claims to be longer is no peer."""
MOST_NAME_BYTES = 1 << 10
"""Longer than any name: whoever has not said one yet does not take memory."""


def framed(frame: Frame) -> bytes:
    """A frame as it travels."""
    if frame is None:
        return _prefixed(_ALIVE, b"")
    if isinstance(frame, str):
        return _prefixed(_NAME, frame.encode())
    kind = _KINDS.index(type(frame))
    return _prefixed(kind, _ADAPTERS[kind].dump_json(frame))


def frames(received: bytearray, most_bytes: Callable[[], int] = lambda: MOST_BYTES) -> Iterator[Frame]:
    """Take the whole frames out of what was received; none of more bytes than `most_bytes` says by then is waited for.

    Raises:
        CommunicationError: it is nothing that a member sends.
    """
    while len(received) > _LENGTH_BYTES:
        length = int.from_bytes(received[:_LENGTH_BYTES])
        if not 0 < length <= most_bytes():
            raise CommunicationError(f"announces {length} bytes; no member of a ring does", field="frame", value=length)
        end = _LENGTH_BYTES + length
        if len(received) < end:
            return
        kind, body = received[_LENGTH_BYTES], bytes(received[_LENGTH_BYTES + 1 : end])
        del received[:end]
        yield _frame(kind, body)


def _prefixed(kind: int, body: bytes) -> bytes:
    return (len(body) + 1).to_bytes(_LENGTH_BYTES) + bytes((kind,)) + body


def _frame(kind: int, body: bytes) -> Frame:
    if kind == _ALIVE:
        return None
    try:
        return body.decode() if kind == _NAME else _ADAPTERS[kind].validate_json(body)
    except (IndexError, ValidationError, UnicodeDecodeError) as error:
        raise CommunicationError(f"is no message of a ring: {error}", field="frame", value=kind) from error
