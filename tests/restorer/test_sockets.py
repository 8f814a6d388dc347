"""Sockets that live beside groups are not taken for theirs."""

import socket
import struct

import pytest

from restorer.sockets import addresses_in, ending_at, kept_apart, open_sockets


def test_what_is_kept_apart_is_not_told_of():
    before = open_sockets()
    with socket.create_server(("127.0.0.1", 0)) as server:
        listening = open_sockets() - before
        with kept_apart(socket.socket) as own, socket.socket() as other:
            own.connect(server.getsockname())
            other.connect(server.getsockname())
            with kept_apart(lambda: server.accept()[0]):
                assert {number for number, _ in open_sockets() - before - listening} == {other.fileno()}


def test_a_number_that_is_used_again_is_told_of():
    before = open_sockets()
    kept = kept_apart(socket.socket)
    number = kept.fileno()
    kept.close()
    with socket.socket() as next_one:
        assert next_one.fileno() == number
        assert {found for found, _ in open_sockets() - before} == {number}


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_connections_from_and_to_an_address_are_known_by_it(family, host):
    """As gloo tells it: in the system's form, somewhere in bytes of its own."""
    before = open_sockets()
    with socket.create_server((host, 0), family=family) as server, socket.create_server((host, 0), family=family) as other:
        port = server.getsockname()[1]
        told = struct.pack("=H", family) + struct.pack("!H", port) + bytes(4 * (family == socket.AF_INET6))
        addresses = addresses_in(b"\x02\x00\n\x00" + told + socket.inet_pton(family, host) + b"\x02\x00\n\x00")
        with (
            socket.create_connection(server.getsockname()[:2]) as client,
            socket.create_connection(other.getsockname()[:2]),
            server.accept()[0] as accepted,
            other.accept()[0],
        ):
            one, another = socket.socketpair()
            with one, another:
                found = ending_at(open_sockets() - before, addresses)
            assert {number for number, _ in found} == {client.fileno(), accepted.fileno()}
            assert ending_at(found, addresses_in(b"")) == frozenset()
