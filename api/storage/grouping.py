"""Group commit: writes that come at the same time share one transaction, and with it one sync of the disk."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Connection

from api.storage.database import Database
from api.storage.engines import DATABASE_FIELD
from kintsugi.core.errors import KintsugiError, UnavailableError

Work = Callable[[Connection], None]
"""Makes its changes on a connection that others may share; it commits nothing, and does the same when it is run again."""


class _Ticket:
    """One write on its way to the disk."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.error: BaseException | None = None
        self.is_done = False


class GroupCommit:
    """Takes the writes of several threads; whoever comes first commits for all who came while the disk was busy.

    It takes no thread and no delay: a write that comes alone is committed at once, as if there were no group.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: deque[_Ticket] = deque()
        self._turn = threading.Lock()

    def write(self, work: Work) -> None:
        """Return once what `work` changes is durable.

        Raises:
            OvertakenError: another writer was first; nothing of this write was stored.
            UnavailableError: the database does not answer.
        """
        ticket = _Ticket(work)
        self._waiting.append(ticket)
        with self._turn:
            if not ticket.is_done:
                self._commit([self._waiting.popleft() for _ in range(len(self._waiting))])
        if ticket.error is not None:
            raise ticket.error

    def _commit(self, group: Sequence[_Ticket]) -> None:
        """Commit all in one transaction; where one of them fails, nobody else pays for it: each has one of its own then."""
        num_run = 0
        try:
            with self._database.writing() as connection:
                for ticket in group:
                    ticket.work(connection)
                    num_run += 1
        except BaseException as error:
            if len(group) > 1 and num_run < len(group):
                for ticket in group:
                    self._commit([ticket])
                return
            for ticket in group:
                ticket.error = _shared_failure(error)
        for ticket in group:
            ticket.is_done = True


def _shared_failure(error: BaseException) -> BaseException:
    """The failure as one of those who shared the transaction hears of it: an exception belongs to one thread."""
    if not isinstance(error, KintsugiError):
        return UnavailableError(f"the transaction failed: {type(error).__name__}: {error}", field=DATABASE_FIELD)
    document: dict[str, Any] = error.as_dict()
    copy = type(error)(error.message, field=document["field"], value=document["value"])
    copy.__cause__ = error
    return copy
