"""Leases of generations: of all who ask for the right to decide one, the first gets it, for ever."""

from sqlalchemy import Connection, insert, select

from api.access.callers import caller, no_job
from api.jobs.clock import utc_now
from api.storage.database import OvertakenError
from api.storage.store import Store
from api.storage.tables import LEASES
from kintsugi.core import codec
from kintsugi.core.errors import ConflictError, NotFoundError
from kintsugi.core.leases import LeaseClaim, LeaseRecord


class Leases:
    """What is held for all jobs, in the service's database; its primary key is the compare-and-swap."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def claim(self, job: str, generation: int, claim: LeaseClaim) -> tuple[LeaseRecord, bool]:
        """Have an agreement held; whether it is new. The same claim again changes nothing.

        Raises:
            NotFoundError: there is no such job.
            ConflictError: another agreement is held for this generation.
            UnavailableError: the database does not answer; whether it holds this one is not known.
        """
        self._require(job)
        record = LeaseRecord(job=job, generation=generation, holder=claim.holder, agreement=claim.agreement, granted_at=utc_now())
        try:
            return self._insert(record), True
        except OvertakenError:
            held = self.held(job, generation)
        if held.agreement != claim.agreement:
            message = f"is held by {held.holder} with another agreement since {held.granted_at}; read it, and go on with that one"
            raise ConflictError(message, field="generation", value=generation)
        return held, False

    def held(self, job: str, generation: int) -> LeaseRecord:
        """What is held for a generation.

        Raises:
            NotFoundError: there is no such job, or nobody has asked for it.
        """
        return self._found(job, generation, is_latest=False)

    def latest(self, job: str, generation: int) -> LeaseRecord:
        """What is held for the latest generation that is not before this one.

        Raises:
            NotFoundError: there is no such job, or nobody has asked for any of them.
        """
        return self._found(job, generation, is_latest=True)

    def _insert(self, record: LeaseRecord) -> LeaseRecord:
        with self._store.database.writing() as connection:
            if (found := _row(connection, record.job, record.generation, is_latest=False)) is not None:
                raise OvertakenError(f"{found.holder} was first")
            connection.execute(insert(LEASES), codec.encode(record))
        return record

    def _require(self, job: str) -> None:
        caller().require(job)
        if self._store.job(job) is None:
            raise no_job(job)

    def _found(self, job: str, generation: int, *, is_latest: bool) -> LeaseRecord:
        self._require(job)
        with self._store.database.reading() as connection:
            found = _row(connection, job, generation, is_latest=is_latest)
        if found is None:
            raise NotFoundError("nobody holds it", field="generation", value=generation)
        return found


def _row(connection: Connection, job: str, generation: int, *, is_latest: bool) -> LeaseRecord | None:
    columns = LEASES.c
    of_job = select(LEASES).where(columns.job == job)
    query = (
        of_job.where(columns.generation >= generation).order_by(columns.generation.desc()).limit(1)
        if is_latest
        else of_job.where(columns.generation == generation)
    )
    row = connection.execute(query).one_or_none()
    return None if row is None else LeaseRecord(**row._mapping)
