"""Who listens under a token is told nothing more once it is good for nothing."""

from contextlib import closing
from dataclasses import replace

import pytest

from api.access.listening import while_usable
from api.access.tokens import NewToken
from api.access.vault import Vault
from api.storage.database import Database
from kintsugi.core.errors import UnavailableError

pytestmark = pytest.mark.anyio


@pytest.fixture
def vault(database_url):
    with closing(Database(database_url)) as database:
        yield Vault(database)


@pytest.fixture
def always_asked(monkeypatch):
    """Nothing of what was found is believed any longer than that."""
    monkeypatch.setattr("api.access.listening.CACHED_SECONDS", 0.0)


async def heard(vault, token, meanwhile=lambda: None):
    """What of four messages is heard where something happens after the second."""
    closed = []

    async def messages():
        try:
            for number in range(4):
                if number == 2:
                    meanwhile()
                yield b"%d" % number
        finally:
            closed.append(True)

    told = [int(message) async for message in while_usable(messages(), token, vault)]
    assert closed
    return told


async def test_a_usable_token_and_none_hear_everything(vault, always_asked):
    assert await heard(vault, vault.issue(NewToken(name="x")).token) == [0, 1, 2, 3]
    assert await heard(vault, None) == [0, 1, 2, 3]


async def test_a_revoked_token_hears_nothing_more(vault, always_asked):
    token = vault.issue(NewToken(name="x")).token
    assert await heard(vault, token, lambda: vault.revoke(token.id)) == [0, 1]


async def test_an_expired_token_hears_nothing_more(vault):
    token = vault.issue(NewToken(name="x", expires_in_seconds=60)).token
    assert await heard(vault, token) == [0, 1, 2, 3]
    assert await heard(vault, replace(token, expires_at=token.created_at)) == []


async def test_a_database_that_is_away_takes_nobodys_token(vault, always_asked, monkeypatch):
    def away(_):
        raise UnavailableError("the database is away")

    token = vault.issue(NewToken(name="x")).token
    assert await heard(vault, token, lambda: monkeypatch.setattr(vault, "token", away)) == [0, 1, 2, 3]
