"""Connections to PostgreSQL on which nobody waits for ever: a server may freeze, or vanish with a statement in its hands."""

import time
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from psycopg import Connection, Error, OperationalError
from psycopg.abc import PQGen

SILENCE_SECONDS = 35.0
"""How long a server may say nothing: longer than it may take for one statement, whose end it would tell itself."""


class BoundedConnection(Connection[Any]):
    """Given up once the server says nothing for `SILENCE_SECONDS`; the pool makes another one then."""

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


def connected(arguments: Sequence[Any], options: Mapping[str, Any], *, is_bounded: bool) -> Connection[Any]:
    """A connection; where there is none, its socket is closed.

    Args:
        arguments: of psycopg.
        options: of psycopg, by name.
        is_bounded: whether it is given up when the server says nothing.

    Raises:
        Error: there is none.
    """
    kind = BoundedConnection if is_bounded else Connection[Any]
    try:
        return kind.connect(*arguments, **options)
    except Error as error:  # which holds the socket in a cycle, and garbage is looked for seldom
        error.__context__ = None
        traceback.clear_frames(error.__traceback__)
        raise
