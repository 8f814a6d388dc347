"""What arrives over a link is a message, or an error that says so."""

import socket

import pytest

from kintsugi.core.errors import CommunicationError
from kintsugi.runtime.overlay.messages import read
from tests.runtime.overlay.strangers import frame


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b"\xff",
        b"5",
        b"[]",
        b'["x"]',
        b'["x",{},{}]',
        b'{"x":1,"y":2}',
        b'["x",[]]',
        b'["x",null]',
        b"[1,{}]",
        b"[" * 20_000,
    ],
    ids=lambda header: header[:20].decode(errors="replace"),
)
def test_what_is_no_message_is_told_as_such(header):
    one, other = socket.socketpair()
    with one, other:
        one.sendall(frame(header))
        with pytest.raises(CommunicationError, match="a message arrived that is none"):
            read(other)
