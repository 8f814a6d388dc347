"""Streams end with the token of whoever listens: a connection that stays open is no way around revocation, nor around tokens."""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from anyio import move_on_after
from anyio.to_thread import run_sync

from api.access.assembly import Access
from api.access.tokens import Token
from api.access.vault import CACHED_SECONDS, Vault
from api.moments import moment_of, text_of, utc_now
from kintsugi.core.errors import NotFoundError, UnavailableError


async def while_usable(messages: AsyncGenerator[bytes, None], token: Token | None, access: Access) -> AsyncGenerator[bytes, None]:
    """What a stream says until its token expires, or to the first message that comes once it was revoked five seconds ago.

    Who listens without one is told nothing more once tokens are needed.

    Args:
        messages: of the stream.
        token: under which it was asked for; None where none was needed.
        access: its vault is asked at most every `CACHED_SECONDS`; a database that is away takes nobody's token.
    """
    asked = float("-inf")  # what let the stream begin may have been found that long ago already
    async with aclosing(messages):
        while (message := await _next(messages, token)) is not None:
            if token is None and await access.asks_for_tokens():
                return
            if token is not None and time.monotonic() - asked >= CACHED_SECONDS:
                asked = time.monotonic()
                try:
                    token = await run_sync(_now, access.vault, token)
                except NotFoundError:  # it went with the rows of a database that was set back
                    return
            if token is not None and not token.is_usable(text_of(utc_now())):
                return
            yield message


async def _next(messages: AsyncGenerator[bytes, None], token: Token | None) -> bytes | None:
    """The next message; None where there are no more, or none before the token expires."""
    if token is None or token.expires_at is None:
        return await anext(messages, None)
    with move_on_after((moment_of(token.expires_at) - utc_now()).total_seconds()):
        return await anext(messages, None)
    return None


def _now(vault: Vault, token: Token) -> Token:
    try:
        return vault.token(token.id)
    except UnavailableError:
        return token
