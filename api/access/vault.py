"""The tokens of one database."""

import hmac
import time
from contextlib import suppress
from dataclasses import fields
from datetime import timedelta
from typing import Any

from sqlalchemy import Row, insert, or_, select, update

from api.access.tokens import IssuedToken, NewToken, Scope, Token, TokenPage, digest_of, id_in, new_id, new_secret
from api.http.cursors import Cursors
from api.moments import text_of, utc_now
from api.storage.database import Database, TakenError
from api.storage.recent import Recent
from api.storage.tables import TOKENS
from kintsugi.core.errors import InvalidInputError, NotFoundError

CACHED_TOKENS = 1_024
CACHED_SECONDS = 5.0
"""How long another process may go on accepting a token that this one revoked."""


class Vault:
    """Issues, checks and revokes tokens; safe for several threads, and for several processes on one database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: Recent[str, tuple[Token, float]] = Recent(CACHED_TOKENS)

    def issue(self, new: NewToken) -> IssuedToken:
        """A new token; its secret is told here and kept nowhere."""
        token_id = new_id()
        secret = new_secret(token_id)
        return IssuedToken(token=self._put(token_id, secret, new), secret=secret)

    def adopt(self, secret: str, new: NewToken) -> None:
        """Accept a token that another service issued; one that is known already stays as it is, revoked ones too.

        Raises:
            InvalidInputError: it is no token by its form.
        """
        token_id = id_in(secret)
        if token_id is None:
            raise InvalidInputError("is no token; `kintsugi token create` prints one", field="KINTSUGI_OVERLAY_LOG_TOKEN")
        with self._database.reading() as connection:
            is_known = connection.execute(select(TOKENS.c.id).where(TOKENS.c.id == token_id)).first() is not None
        if not is_known:
            with suppress(TakenError):  # by another process, which starts with the same settings
                self._put(token_id, secret, new)

    def _put(self, token_id: str, secret: str, new: NewToken) -> Token:
        now = utc_now()
        life = new.expires_in_seconds
        token = Token(
            id=token_id,
            name=new.name,
            scope=new.scope,
            job=new.job,
            created_at=text_of(now),
            expires_at=None if life is None else text_of(now + timedelta(seconds=life)),
            revoked_at=None,
        )
        with self._database.writing() as connection:
            connection.execute(insert(TOKENS), {**_values(token), "digest": digest_of(secret)})
        return token

    def revoke(self, token: str) -> Token:
        """The token, which is good for nothing any more; revoking it again changes nothing.

        Raises:
            NotFoundError: there is no such token.
        """
        now = text_of(utc_now())
        with self._database.writing() as connection:
            open_one = update(TOKENS).where(TOKENS.c.id == token, TOKENS.c.revoked_at.is_(None))
            connection.execute(open_one.values(revoked_at=now))
            row = connection.execute(select(TOKENS).where(TOKENS.c.id == token)).one_or_none()
        self._known = Recent(CACHED_TOKENS)
        if row is None:
            raise _no_token(token)
        return _token(row)

    def token(self, token: str) -> Token:
        """The token of an id, usable or not.

        Raises:
            NotFoundError: there is no such token.
            UnavailableError: the database does not answer.
        """
        with self._database.reading() as connection:
            row = connection.execute(select(TOKENS).where(TOKENS.c.id == token)).one_or_none()
        if row is None:
            raise _no_token(token)
        return _token(row)

    def page(self, cursor: str | None, limit: int) -> TokenPage:
        """Up to `limit` tokens behind `cursor`, revoked and expired ones too."""
        cursors = Cursors("tokens")
        order = (TOKENS.c.created_at, TOKENS.c.id)
        moment, last = cursors.pair(cursor)
        behind = or_(order[0] > moment, (order[0] == moment) & (order[1] > last))
        with self._database.reading() as connection:
            rows = connection.execute(select(TOKENS).where(behind).order_by(*order).limit(limit + 1)).all()
        tokens = tuple(_token(row) for row in rows[:limit])
        more = len(rows) > limit
        return TokenPage(tokens=tokens, next_cursor=cursors.after(tokens[-1].created_at, tokens[-1].id) if more else None)

    def has_any(self) -> bool:
        """Whether a token was ever issued."""
        with self._database.reading() as connection:
            return connection.execute(select(TOKENS.c.id).limit(1)).first() is not None

    def has_usable(self) -> bool:
        """Whether a token is good for something now."""
        now = text_of(utc_now())
        good = TOKENS.c.revoked_at.is_(None) & or_(TOKENS.c.expires_at.is_(None), TOKENS.c.expires_at > now)
        with self._database.reading() as connection:
            return connection.execute(select(TOKENS.c.id).where(good).limit(1)).first() is not None

    def recent(self, secret: str) -> Token | None:
        """The usable token of a secret that was found a moment ago; asks no database."""
        known = self._known.get(digest_of(secret))
        if known is None or time.monotonic() - known[1] > CACHED_SECONDS:
            return None
        return known[0] if known[0].is_usable(text_of(utc_now())) else None

    def find(self, secret: str) -> Token | None:
        """The usable token of a secret.

        The row is found by the id, which is public; digests are compared in constant time, also where there is no row.

        Raises:
            UnavailableError: the database does not answer.
        """
        token_id, digest, asked = id_in(secret), digest_of(secret), time.monotonic()
        if token_id is None:
            return None
        known = self._known  # another one takes its place where the token is revoked meanwhile
        with self._database.reading() as connection:
            row = connection.execute(select(TOKENS).where(TOKENS.c.id == token_id)).one_or_none()
        matches = hmac.compare_digest(digest, row.digest if row is not None else digest_of(""))
        if row is None or not matches:
            return None
        token = _token(row)
        known.put(digest, (token, asked))
        return token if token.is_usable(text_of(utc_now())) else None


def _no_token(token: str) -> NotFoundError:
    return NotFoundError(
        "there is no token of this id; `kintsugi token list` shows those that there are", field="token", value=token
    )


def _values(token: Token) -> dict[str, Any]:
    return {field.name: getattr(token, field.name) for field in fields(Token)}


def _token(row: Row[Any]) -> Token:
    values = {field.name: row._mapping[field.name] for field in fields(Token)}
    return Token(**{**values, "scope": Scope(row.scope)})
