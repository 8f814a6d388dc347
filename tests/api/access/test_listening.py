"""Who listens under a token is told nothing more once it is good for nothing."""

from contextlib import closing
from datetime import timedelta

import anyio
import pytest
from sqlalchemy import delete, update

from api.access import listening
from api.access.assembly import access_of
from api.access.listening import while_usable
from api.access.tokens import NewToken
from api.moments import moment_of
from api.settings import Settings
from api.storage.database import Database
from api.storage.tables import TOKENS
from kintsugi.core.errors import UnavailableError

pytestmark = pytest.mark.anyio


@pytest.fixture
def access(database_url):
    with closing(Database(database_url)) as database:
        yield access_of(Settings(database_url=database_url), database)


@pytest.fixture
def vault(access):
    return access.vault


@pytest.fixture
def always_asked(monkeypatch):
    """Nothing of what was found is believed any longer than that."""
    for module in ("listening", "assembly"):
        monkeypatch.setattr(f"api.access.{module}.CACHED_SECONDS", 0.0)


async def heard(access, token, meanwhile=lambda: None):
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

    told = [int(message) async for message in while_usable(messages(), token, access)]
    assert closed
    return told


async def test_a_usable_token_and_none_where_none_is_needed_hear_everything(access, vault, always_asked):
    assert await heard(access, None) == [0, 1, 2, 3]
    assert await heard(access, vault.issue(NewToken(name="x")).token) == [0, 1, 2, 3]


async def test_a_token_that_is_not_there_any_more_hears_nothing_more(access, vault, always_asked):
    """As where the database was set back to before it was issued."""
    token = vault.issue(NewToken(name="x")).token

    def set_back():
        with vault._database.writing() as connection:
            connection.execute(delete(TOKENS))

    assert await heard(access, token, set_back) == [0, 1]


async def test_who_has_none_hears_nothing_more_once_there_is_one(access, vault, always_asked):
    assert await heard(access, None, lambda: vault.issue(NewToken(name="x"))) == [0, 1]


async def test_a_revoked_token_hears_nothing_more(access, vault, always_asked):
    token = vault.issue(NewToken(name="x")).token
    assert await heard(access, token, lambda: vault.revoke(token.id)) == [0, 1]


async def test_who_begins_to_listen_as_the_token_was_revoked_elsewhere_a_moment_ago_hears_nothing(access, vault):
    """This process may have found it usable just before, and believes that for five seconds: not for five more."""
    token = vault.issue(NewToken(name="x")).token
    vault.revoke(token.id)
    assert await heard(access, token) == []


async def test_an_expired_token_hears_nothing_more(access, vault):
    token = vault.issue(NewToken(name="x", expires_in_seconds=60)).token
    assert await heard(access, token) == [0, 1, 2, 3]
    with vault._database.writing() as connection:
        connection.execute(update(TOKENS).values(expires_at=token.created_at))
    assert await heard(access, vault.token(token.id)) == []


async def test_who_hears_nothing_is_sent_away_as_the_token_expires(access, vault, monkeypatch):
    token, closed = vault.issue(NewToken(name="x", expires_in_seconds=60.0)).token, []

    async def messages():
        try:
            yield b"begin"
            await anyio.sleep_forever()
        finally:
            closed.append(True)

    heard = []
    with anyio.fail_after(30):
        async for message in while_usable(messages(), token, access):
            heard.append(message)
            monkeypatch.setattr(listening, "utc_now", lambda: moment_of(token.expires_at) - timedelta(seconds=0.1))
    assert heard == [b"begin"]
    assert closed


async def test_a_database_that_is_away_takes_nobodys_token(access, vault, always_asked, monkeypatch):
    def away(_):
        raise UnavailableError("the database is away")

    token = vault.issue(NewToken(name="x")).token
    assert await heard(access, token, lambda: monkeypatch.setattr(vault, "token", away)) == [0, 1, 2, 3]
