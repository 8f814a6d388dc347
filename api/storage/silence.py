"""Connections to PostgreSQL on which nobody waits for ever: a server may freeze, or vanish with a statement in its hands."""

import time
import traceback
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from psycopg import Connection, Error, OperationalError
from psycopg.abc import PQGen

from api.storage.engines import setting

ConnectionT = TypeVar("ConnectionT", bound=Connection[Any])

SILENCE_SECONDS = 35.0
"""How long a server may say nothing: longer than it may take for one statement, whose end it would tell itself."""


class BoundedConnection(Connection[Any]):
    """Given up once the server says nothing for `SILENCE_SECONDS`; the pool makes another one then."""

    limits: Mapping[str, float] = MappingProxyType({})
    """Settings, in seconds, that each transaction has to make anew."""

    def hold_to(self, limits: Mapping[str, float]) -> None:
        """Set these, in seconds, for the session; behind a pooler, which may lead each transaction to another one, for each.

        At the start (`options`) it would take no time, and poolers refuse it.
        """
        self.autocommit = True
        (process,) = self.execute("SELECT pg_backend_pid()").fetchone() or (None,)
        if process == self.info.backend_pid:
            self.execute(setting(limits, is_local=False))
        else:  # a pooler made up what it told of itself
            self.limits = limits
        self.autocommit = False

    def wait(self, gen: PQGen[Any], *args: Any, **kwargs: Any) -> Any:
        """What the server answers.

        Raises:
            OperationalError: nothing came from it; the connection is closed.
        """
        return super().wait(self._bounded(gen), *args, **kwargs)

    def _bounded(self, gen: PQGen[Any]) -> PQGen[Any]:
        heard_at = time.monotonic()
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if ready:
                    heard_at = time.monotonic()
                elif time.monotonic() - heard_at > SILENCE_SECONDS:
                    self.pgconn.finish()
                    raise OperationalError(f"the server has said nothing for {SILENCE_SECONDS:g} s")
                wanted = gen.send(ready)
        except StopIteration as end:
            return end.value


def connected(arguments: Sequence[Any], options: Mapping[str, Any], *, limits: Mapping[str, float]) -> Connection[Any]:
    """A connection; where there is none, its socket is closed.

    Args:
        arguments: of psycopg.
        options: of psycopg, by name.
        limits: what it is held to, in seconds; one with limits is also given up when the server says nothing.

    Raises:
        Error: there is none.
    """
    if not limits:
        return _opened(Connection[Any], arguments, options)
    connection = _opened(BoundedConnection, arguments, options)
    try:
        connection.hold_to(limits)
    except BaseException:
        connection.close()
        raise
    return connection


def _opened(kind: type[ConnectionT], arguments: Sequence[Any], options: Mapping[str, Any]) -> ConnectionT:
    try:
        return kind.connect(*arguments, **options)
    except Error as error:  # which holds the socket in a cycle, and garbage is looked for seldom
        error.__context__ = None
        traceback.clear_frames(error.__traceback__)
        raise
