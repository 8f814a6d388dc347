"""What workers that decide generations by themselves say to and hear from the service."""

from collections.abc import Iterator

from kintsugi.client.answers import answer_of
from kintsugi.client.connection import Connection, path_of
from kintsugi.core import codec
from kintsugi.core.leases import Contingency, ContingencyPage, LeaseClaim, LeaseRecord


class GenerationCalls:
    """The operations on leases and plans made ahead, of a client with a connection."""

    _connection: Connection

    def claim_lease(self, job: str, generation: int, *, holder: str, agreement: str) -> LeaseRecord:
        """Have an agreement held as the one on a generation of the workers' membership; the same again changes nothing.

        Raises:
            ConflictError: another one is held; `lease` tells it.
            NotFoundError: there is no such job.
        """
        claim = codec.dumps(LeaseClaim(holder=holder, agreement=agreement))
        return self._connection.send("POST", _lease(job, generation), answer_of(LeaseRecord), content=claim)

    def lease(self, job: str, generation: int, *, latest: bool = False) -> LeaseRecord:
        """What is held for a generation, or for the `latest` that is not before it.

        Raises:
            NotFoundError: nothing is, or there is no such job.
        """
        parameters = {"latest": "true"} if latest else {}
        return self._connection.send("GET", _lease(job, generation), answer_of(LeaseRecord), parameters=parameters)

    def contingencies(self, job: str, *, cursor: str | None = None, limit: int = 100) -> ContingencyPage:
        """A page of the decisions that were made ahead of the next generation."""
        parameters = {"cursor": cursor, "limit": limit}
        return self._connection.send("GET", path_of(job, "contingencies"), answer_of(ContingencyPage), parameters=parameters)

    def all_contingencies(self, job: str, generation: int) -> Iterator[Contingency]:
        """The decisions that were made ahead of a generation so far; none once it is decided."""
        cursor: str | None = None
        while (page := self.contingencies(job, cursor=cursor)).generation == generation:
            yield from page.contingencies
            if (cursor := page.next_cursor) is None:
                return


def _lease(job: str, generation: int) -> str:
    return path_of(job, "generations", str(generation), "lease")
