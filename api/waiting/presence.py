"""Waiting on behalf of a client, for as long as it is there."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from anyio import CancelScope
from fastapi import Request


@contextmanager
def while_there(request: Request) -> Iterator[None]:
    """Call off what is awaited inside once the client is gone, as though its time were over; nobody reads an answer then."""
    with CancelScope() as scope:
        watching = asyncio.create_task(_call_off(request, scope))
        try:
            yield
        finally:
            watching.cancel()


async def _call_off(request: Request, scope: CancelScope) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass  # of a request without a body: its end
    scope.cancel()
