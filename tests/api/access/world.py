"""A service that asks for tokens, with two jobs and a token of every kind."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from sqlalchemy import update
from starlette.testclient import TestClient

from api.access.tokens import NewToken, Scope
from api.access.vault import Vault
from api.app import create_app
from api.settings import Settings
from api.storage.store import Store
from api.storage.tables import TOKENS
from tests.api.requests import new_job

OWN, OTHER, ABSENT = "tortoise", "gemma", "absent"


@dataclass
class World:
    client: TestClient
    secrets: dict[str, str] = field(default_factory=dict)

    def bearer(self, name: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.secrets[name]}"}

    def ask(self, method: str, path: str, name: str, **named):
        headers = {**self.bearer(name), **named.pop("headers", {})}
        return self.client.request(method, path, headers=headers, follow_redirects=False, **named)


def issued(database_url: str, *tokens: NewToken, expired: tuple[str, ...] = (), revoked: tuple[str, ...] = ()) -> dict[str, str]:
    """Secrets of new tokens, by name."""
    store = Store(database_url)
    store.open()
    try:
        vault = Vault(store.database)
        made = [vault.issue(token) for token in tokens]
        with store.database.writing() as connection:
            for one in made:
                if one.token.name in expired:
                    connection.execute(
                        update(TOKENS).where(TOKENS.c.id == one.token.id).values(expires_at="2020-01-01T00:00:00.000000Z")
                    )
        for one in made:
            if one.token.name in revoked:
                vault.revoke(one.token.id)
    finally:
        store.close()
    return {one.token.name: one.secret for one in made}


@contextmanager
def guarded(database_url: str, **changes) -> Iterator[World]:
    """The service with its tokens, named for what they may do, and where."""
    tokens = [
        NewToken(name="admin", scope=Scope.ADMINISTER),
        NewToken(name="reporter", scope=Scope.REPORT),
        NewToken(name="reader", scope=Scope.READ),
        NewToken(name="own admin", scope=Scope.ADMINISTER, job=OWN),
        NewToken(name="own reporter", scope=Scope.REPORT, job=OWN),
        NewToken(name="own reader", scope=Scope.READ, job=OWN),
        NewToken(name="stranger", scope=Scope.ADMINISTER, job=OTHER),
        NewToken(name="expired", scope=Scope.ADMINISTER),
        NewToken(name="revoked", scope=Scope.ADMINISTER),
    ]
    secrets = issued(database_url, *tokens, expired=("expired",), revoked=("revoked",))
    settings = Settings(
        database_url=database_url,
        **{"require_tokens": "always", "plans_ahead": False, "max_failed_sign_ins_per_minute": 1e6, **changes},
    )
    with TestClient(create_app(settings)) as client:
        world = World(client, secrets)
        for job in (OWN, OTHER):
            assert world.ask("POST", "/v1/jobs", "admin", json=new_job(id=job)).status_code == 201
        yield world
