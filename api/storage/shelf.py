"""Decisions made ahead, on disk: those of a job's latest generation, found by the snapshot they answer."""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import delete, func, insert, select

from api.storage.database import Database
from api.storage.reach import is_ended
from api.storage.statements import CONTINGENCY
from api.storage.tables import CONTINGENCIES, DECISIONS
from api.storage.wording import Wording
from kintsugi.core.checks import LARGEST_INTEGER
from kintsugi.core.decision import Decision
from kintsugi.core.plan import Plan
from planner.sources import planner_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """A decision as it is stored, and what is logged and counted of it."""

    policy: str
    reason: str
    wording: Wording
    plan: Plan | None = None
    """Its plan, where the wording need not be read for it."""

    @classmethod
    def of(cls, decision: Decision) -> "Decided":
        """The form in which a decision is stored."""
        policy, reason = decision.policy.value, decision.reason
        return cls(policy=policy, reason=reason, wording=Wording.of(decision), plan=decision.plan)


class Shelf:
    """The contingencies of all jobs; what a planner of another version, or of other sources, made is not found."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._planner = planner_name()

    def put(self, job: str, generation: int, decided: Mapping[str, Decided]) -> bool:
        """Store decisions by fingerprint, and drop those of the job's earlier generations; what nobody asks for does not stay.

        Args:
            job: id of the job.
            generation: of all these decisions.
            decided: by the fingerprint of the snapshot; none of them is stored already.

        Returns:
            Whether nobody asks for them any more: the job has ended, or it was decided for this generation.

        Raises:
            OvertakenError: another process stored one of them first.
            UnavailableError: the database does not answer.
        """
        rows = [
            {
                "job": job,
                "fingerprint": fingerprint,
                "generation": generation,
                "planner_version": self._planner,
                "policy": item.policy,
                "reason": item.reason,
                "brief": item.wording.brief,
                "account": item.wording.account,
            }
            for fingerprint, item in decided.items()
        ]
        with self._database.writing() as connection:
            connection.execute(delete(CONTINGENCIES).where(CONTINGENCIES.c.job == job, CONTINGENCIES.c.generation < generation))
            if rows:
                connection.execute(insert(CONTINGENCIES), rows)
        decided_for = self._decided_for(job)  # not before: who goes on meanwhile drops only what is there by then
        if generation > decided_for:
            return False
        with self._database.writing() as connection:
            connection.execute(delete(CONTINGENCIES).where(CONTINGENCIES.c.job == job, CONTINGENCIES.c.generation <= decided_for))
        return True

    def find(self, job: str, fingerprint: str) -> Decided | None:
        """The decision for a snapshot, if it was made ahead."""
        asked = {"job": job, "fingerprint": fingerprint, "planner_version": self._planner}
        with self._database.reading() as connection:
            row = connection.execute(CONTINGENCY, asked).one_or_none()
        if row is None:
            return None
        return Decided(policy=row.policy, reason=row.reason, wording=Wording(brief=row.brief, account=row.account))

    def page(self, job: str, generation: int, *, after: str, limit: int) -> list[tuple[str, Wording]]:
        """Decisions of a generation by fingerprint, ascending, above `after`."""
        columns = CONTINGENCIES.c
        mine = (columns.job == job) & (columns.generation == generation) & (columns.planner_version == self._planner)
        query = select(CONTINGENCIES).where(mine, columns.fingerprint > after).order_by(columns.fingerprint).limit(limit)
        with self._database.reading() as connection:
            return [(row.fingerprint, Wording(brief=row.brief, account=row.account)) for row in connection.execute(query)]

    def fingerprints(self, job: str) -> frozenset[str]:
        """What the job's stored contingencies are found by."""
        columns = CONTINGENCIES.c
        query = select(columns.fingerprint).where(columns.job == job, columns.planner_version == self._planner)
        with self._database.reading() as connection:
            return frozenset(connection.execute(query).scalars())

    def _decided_for(self, job: str) -> int:
        """The latest generation of a job that it was decided for; the last of all where it has ended."""
        if is_ended(self._database, job):
            return LARGEST_INTEGER
        with self._database.reading() as connection:
            latest: int | None = connection.execute(select(func.max(DECISIONS.c.generation)).where(DECISIONS.c.job == job)).scalar()
        return -1 if latest is None else latest
