"""Sockets that live beside groups are not taken for theirs."""

import socket

from restorer.sockets import kept_apart, open_sockets


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
