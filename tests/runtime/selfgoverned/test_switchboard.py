"""Members find each other through the one that serves them, whoever says what first."""

import asyncio
import gc
import queue
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kintsugi.runtime.messages import Delivered
from kintsugi.runtime.selfgoverned import switchboard
from kintsugi.runtime.selfgoverned.switchboard import AllReady, FromSwitchboard, Switchboard, Unserved
from kintsugi.runtime.selfgoverned.table import Table
from restorer.rendezvous import group_prefix
from tests.runtime.runs import leaves_nothing

MEMBERS = ("w00", "w01", "w02")
TIMEOUT_SECONDS = 10.0
Heard = queue.Queue[FromSwitchboard]


@contextmanager
def switchboards() -> Iterator[tuple[dict[str, Switchboard], dict[str, Heard]]]:
    heard: dict[str, Heard] = {member: queue.Queue() for member in MEMBERS}
    with leaves_nothing(), ExitStack() as closing:
        boards = {member: Switchboard(member, "127.0.0.1", heard[member].put) for member in MEMBERS}
        for board in boards.values():
            closing.callback(board.close)
        yield boards, heard


def key_of(group: tuple[str, ...], member: str, attempt: int = 1) -> str:
    return f"{group_prefix(f'attempt{attempt}', group)}/0/{group.index(member)}"


def test_groups_meet_and_all_learn_that_all_are_ready():
    with switchboards() as (boards, heard):
        for member, board in boards.items():
            board.join(1, MEMBERS, boards["w00"].address)
            for group in (MEMBERS, MEMBERS[1:]):
                if member in group:
                    board.publish(Delivered(1, key_of(group, member), member.encode()))
            board.ready(1)
        for member in MEMBERS:
            groups = [group for group in (MEMBERS, MEMBERS[1:]) if member in group]
            expected = {(key_of(group, other), other.encode()) for group in groups for other in group}
            messages = [heard[member].get(timeout=TIMEOUT_SECONDS) for _ in range(len(expected) + 1)]
            assert {(m.key, m.value) for m in messages if isinstance(m, Delivered)} == expected
            assert AllReady(1) in messages


def published_by_all(boards: dict[str, Switchboard], value: bytes) -> None:
    for member, board in boards.items():
        board.join(1, MEMBERS, boards["w00"].address)
        board.publish(Delivered(1, key_of(MEMBERS, member), value))


def test_all_addresses_of_a_group_of_hundreds_arrive():
    """Each member tells gloo one for each other: those of 300 are a megabyte and a half together."""
    value = bytes(400_000)
    with switchboards() as (boards, heard):
        published_by_all(boards, value)
        for member in MEMBERS:
            arrived = {heard[member].get(timeout=TIMEOUT_SECONDS) for _ in MEMBERS}
            assert arrived == {Delivered(1, key_of(MEMBERS, other), value) for other in MEMBERS}


def test_what_is_too_long_to_be_heard_is_told(monkeypatch):
    monkeypatch.setattr(switchboard, "_MOST_BYTES", 1_000)
    with switchboards() as (boards, heard):
        published_by_all(boards, bytes(500))
        for member in MEMBERS:
            told = heard[member].get(timeout=TIMEOUT_SECONDS)
            assert isinstance(told, Unserved)
            assert told.attempt == 1


HELLO = b'{"attempt":1,"worker":"w09","members":["w09"]}\n'


@pytest.mark.parametrize(
    "said",
    [
        b"[]\n",
        b"null\n",
        b"[" * 100_000 + b"\n",
        b'{"attempt":null,"worker":"w09","members":[]}\n',
        b'{"attempt":1e999,"worker":"w09","members":[]}\n',
        b'{"attempt":1,"worker":{},"members":[]}\n',
        b'{"attempt":1,"worker":"w09","members":[[1]]}\n',
        b"GET / HTTP/1.1\r\n\r\n",
        HELLO + b"5\n",
        HELLO + b'{"key":5,"value":"a"}\n',
        HELLO + b'{"key":"a"}\n',
    ],
)
def test_a_stranger_is_hung_up_on_without_a_word(said, caplog):
    """Each was a traceback in the worker's log."""
    with switchboards() as (boards, heard):
        with socket.create_connection(boards["w00"].address, timeout=TIMEOUT_SECONDS) as stranger:
            stranger.sendall(said)
            assert stranger.recv(1) == b""
        published_by_all(boards, b"value")
        for member in MEMBERS:
            assert isinstance(heard[member].get(timeout=TIMEOUT_SECONDS), Delivered)
    gc.collect()
    assert not caplog.records


def test_an_attempt_that_is_over_says_nothing_to_the_next():
    with switchboards() as (boards, heard):
        for board in boards.values():
            board.join(1, MEMBERS, boards["w00"].address)
        boards["w02"].ready(1)
        for member in MEMBERS[:2]:
            boards[member].join(2, MEMBERS[:2], boards["w01"].address)
            boards[member].ready(1)
            boards[member].ready(2)
        assert [heard[member].get(timeout=TIMEOUT_SECONDS) for member in MEMBERS[:2]] == [AllReady(2)] * 2


@pytest.mark.parametrize("is_closed_before", [True, False])
def test_whoever_serves_may_be_gone(is_closed_before):
    with switchboards() as (boards, heard):
        if is_closed_before:
            boards["w00"].close()
        boards["w01"].join(1, MEMBERS[:2], boards["w00"].address)
        if not is_closed_before:
            boards["w00"].join(1, MEMBERS[:2], boards["w00"].address)
            boards["w00"].ready(1)
            boards["w01"].ready(1)
            assert heard["w01"].get(timeout=TIMEOUT_SECONDS) == AllReady(1)
            boards["w00"].close()
        message = heard["w01"].get(timeout=TIMEOUT_SECONDS)
        assert isinstance(message, Unserved)
        assert message.attempt == 1


def test_those_that_are_closed_at_once_leave_nothing(monkeypatch):
    monkeypatch.setattr(asyncio, "start_server", _another_turn_before(asyncio.start_server))
    with leaves_nothing():
        for _ in range(20):
            Switchboard("w00", "127.0.0.1", print).close()


def _another_turn_before(function):
    """It lets another thread go first, and what that asks of the loop."""

    async def slowly(*arguments, **options):
        await asyncio.sleep(0.01)
        return await function(*arguments, **options)

    return slowly


@given(st.permutations([*(partial(Table.ready, worker=w) for w in MEMBERS), *(w for w in MEMBERS)]))
def test_nobody_is_told_before_everybody_has_spoken(acts):
    table, spoken, ready = Table(frozenset(MEMBERS)), set(), 0
    for act in acts:
        if isinstance(act, str):
            spoken.add(act)
            told = table.publish(key_of(MEMBERS, act), act)
            assert sorted(member for member, _ in told) == (list(MEMBERS) if len(spoken) == len(MEMBERS) else [])
        else:
            ready += 1
            assert len(act(table)) == (len(MEMBERS) if ready == len(MEMBERS) else 0)
