"""Streams end with the token of whoever listens: a connection that stays open is no way around revocation, nor around tokens."""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from anyio.to_thread import run_sync

from api.access.assembly import Access
from api.access.tokens import Token
from api.access.vault import CACHED_SECONDS, Vault
from api.webhooks.moments import text_of, utc_now
from kintsugi.core.errors import UnavailableError


async def while_usable(messages: AsyncGenerator[bytes, None], token: Token | None, access: Access) -> AsyncGenerator[bytes, None]:
    """What a stream says, up to the first message that comes once its token is expired, or was revoked five seconds ago.

    Who listens without one is told nothing more once tokens are needed.

    Args:
        messages: of the stream.
        token: under which it was asked for; None where none was needed.
        access: its vault is asked at most every `CACHED_SECONDS`; a database that is away takes nobody's token.
    """
    asked = time.monotonic()
    async with aclosing(messages):
        async for message in messages:
            if token is None and await access.asks_for_tokens():
                return
            if token is not None and time.monotonic() - asked >= CACHED_SECONDS:
                asked = time.monotonic()
                token = await run_sync(_now, access.vault, token)
            if token is not None and not token.is_usable(text_of(utc_now())):
                return
            yield message


def _now(vault: Vault, token: Token) -> Token:
    try:
        return vault.token(token.id)
    except UnavailableError:
        return token
