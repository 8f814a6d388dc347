"""A job's log lived through again: every decision is made once more and compared, bit for bit, with the one that is stored."""

import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import chain, pairwise
from typing import Any

from api.decisions import planning
from api.differences import MISSING, Difference, differences
from api.jobs.headlines import headline
from api.jobs.history import Entry, History
from api.records import Records, first_state
from api.storage.reach import gaps, is_ended, reach, unknown_jobs
from api.storage.store import Store
from api.storage.stored import StoredDecision
from api.storage.wording import Wording
from kintsugi.core import codec
from kintsugi.core.errors import KintsugiError, NotFoundError, PlanningFailedError

PAGE = 1_000
CREATED = "created"
BEYOND = "beyond the end"
"""What is stored beside a log, of entries that the log does not hold."""
CLOCK = ("search", "elapsed_seconds")
"""The one part of a decision that is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """One entry of a job's log, or its creation, and what came out differently this time."""

    number: int
    """Of the entry; 0 for the job's creation."""
    at: str
    """When it was received: RFC 3339, UTC."""
    what: str
    generation: int
    """Of the latest decision once the entry was taken into account."""
    decided: bool
    """Whether the entry led to that decision."""
    policy: str | None = None
    planner_version: str | None = None
    """Of the program that made the decision."""
    differences: tuple[Difference, ...] = ()


def lacking(store: Store) -> tuple[Difference, ...]:
    """What no replay of a job can miss: stretches of all logs by their positions, and jobs of which only other tables know.

    What was written last of all, and is gone from all tables, nobody can tell from what never was.

    Raises:
        UnavailableError: the database does not answer.
    """
    positions = (("log.position", f"{first} to {last}") for first, last in gaps(store.database))
    jobs = (("jobs.id", job) for job in unknown_jobs(store.database))
    return tuple(Difference(field=field, stored=MISSING, replayed=named) for field, named in (*positions, *jobs))


class Replay:
    """Replays one job."""

    def __init__(self, store: Store, job: str, *, generation: int | None = None) -> None:
        """Nothing is read yet but the job itself.

        Args:
            store: only read.
            job: id of the job.
            generation: the one decision to make again, after which the replay ends; None for all.

        Raises:
            NotFoundError: there is no such job or generation.
        """
        self._store = store
        self._records = Records(store)
        self._state = first_state(store, job)
        self._only = generation
        self._read: set[str] = set()
        self.num_generations = store.latest_generations([job])[job] + 1
        if generation is not None and generation >= self.num_generations:
            message = f"job {job!r} has generations 0 to {self.num_generations - 1}"
            raise NotFoundError(message, field="generation", value=generation)

    @property
    def job(self) -> str:
        """Id of the job."""
        return self._state.job.id

    @property
    def num_entries(self) -> int:
        """Entries in the job's log."""
        return self._store.num_entries(self.job)

    def __iter__(self) -> Iterator[Replayed]:
        """The job's creation, then one item for each entry, up to the first that makes no sense where it stands.

        Where more is stored than the whole log led to, a last item tells it.
        """
        reached, ended = self._reached()  # before the log, which may grow yet
        created = self._state.job.created_at
        yield self._with_decision(Replayed(number=0, at=created, what=CREATED, generation=0, decided=True), None)
        history, at = self._state.history, created
        for (entry, kept), follower in pairwise(chain(self._entries(), [(None, None)])):
            assert entry is not None
            at = entry.received_at
            if self._only is not None and history.generation >= self._only:
                return
            result = Replayed(
                number=entry.number,
                at=entry.received_at,
                what=headline(entry.content),
                generation=entry.generation,
                decided=entry.decided,
            )
            try:
                after, history = history.after(entry.content, entry.received_at), history.replayed(entry)
            except KintsugiError as error:
                yield replace(result, differences=(impossible("entry", entry.content, error),))
                return
            is_last = follower[0] is None or follower[0].received_at != entry.received_at
            found = [*_entry_compared(history, entry), *_state_compared(history, kept)]
            if entry.problem is not None and is_last and self._only is None:
                found += self._problem_compared(after, entry.problem)
            made = self._with_decision(replace(result, generation=history.generation), after) if entry.decided else result
            yield replace(made, generation=entry.generation, differences=(*found, *made.differences))
        if beyond := tuple(_beyond(history, reached, ended)):
            generation = history.generation
            yield Replayed(number=history.number, at=at, what=BEYOND, generation=generation, decided=False, differences=beyond)

    def _reached(self) -> tuple[dict[str, int], bool]:
        """How far what is stored beside the log names it, and whether the job counts as ended; nothing for a part of the log."""
        if self._only is not None:
            return {}, False
        return reach(self._store.database, self.job), is_ended(self._store.database, self.job)

    def _entries(self) -> Iterator[tuple[Entry | None, History | None]]:
        """The whole log, and the history that was stored with an entry, where one was."""
        after = 0
        while entries := self._store.entries(self.job, after=after, limit=PAGE):
            kept = self._store.kept_histories(self.job, [entry.number for entry in entries])
            yield from ((entry, kept.get(entry.number)) for entry in entries)
            after = entries[-1].number

    def _with_decision(self, result: Replayed, history: History | None) -> Replayed:
        """`result` with the decision that was stored for it, compared with the one made now."""
        if self._only is not None and self._only != result.generation:
            return result
        try:
            stored = self._store.decision(self.job, result.generation)
        except NotFoundError as error:
            return replace(result, differences=(impossible("decision", None, error),))
        found, policy = list(self._documents_compared(stored)), None
        try:
            policy = str(json.loads(stored.wording.text())["plan"]["policy"])
            found += differences(_comparable(stored), _comparable(self._decided_again(result, history)))
        except (KintsugiError, ValueError, zlib.error) as error:
            found.append(impossible("decision", policy, error))
        return replace(result, policy=policy, planner_version=stored.planner_version, differences=tuple(found))

    def _decided_again(self, result: Replayed, history: History | None) -> StoredDecision:
        """The decision that its stored snapshot leads to, with the snapshot that the log leads to."""
        snapshot = planning.restored(self._store, self._state.job, result.generation)
        again, _ = planning.stored(
            Wording.of(planning.decide(snapshot)),
            snapshot if history is None else self._records.snapshot(self._state, history),
            profile=self._state.job.profile,
            settings=self._state.job.settings,
            number=result.number,
            decided_at=result.at,
        )
        return again

    def _problem_compared(self, history: History, stored: Mapping[str, Any]) -> Iterator[Difference]:
        """Whether there still is no plan, for the same reason; that a search failed follows from no snapshot."""
        if stored["code"] == PlanningFailedError.code:
            return
        try:
            decision = planning.decide(self._records.snapshot(self._state, history))
        except KintsugiError as error:
            yield from differences(stored, json.loads(codec.dumps(error.as_dict())), "problem")
        else:
            yield Difference(field="problem", stored=stored["code"], replayed=f"{decision.policy.value}: {decision.reason}")

    def _documents_compared(self, stored: StoredDecision) -> Iterator[Difference]:
        """Whether the documents of a snapshot, and itself, still are what their digests say; each document is read once."""
        yield from differences(stored.snapshot_digest, sha256(stored.snapshot.encode()).hexdigest(), "snapshot_digest")
        reference = json.loads(stored.snapshot)
        for name in ("profile", "cluster", "settings"):
            digest = reference[name]
            if digest not in self._read:
                self._read.add(digest)
                yield from differences(digest, sha256(self._store.body(digest).encode()).hexdigest(), f"documents.{name}")


def _entry_compared(history: History, entry: Entry) -> Iterator[Difference]:
    """What an entry says of its place in the log, against the log up to it.

    All entries of a batch name the generation that its last one led to: at most the next.
    """
    is_foretold = not entry.decided and entry.generation == history.generation + 1
    generation = entry.generation if is_foretold else history.generation
    yield from differences(
        {"number": entry.number, "generation": entry.generation}, {"number": history.number, "generation": generation}, "entry"
    )


def _state_compared(history: History, kept: History | None) -> Iterator[Difference]:
    if kept is not None and kept != history:
        yield from differences(codec.encode(kept), codec.encode(history), "state")


def _beyond(history: History, reached: Mapping[str, int], is_ended: bool) -> Iterator[Difference]:
    """What is named of a log that it does not hold, once all of it is replayed."""
    ends = {"number": history.number, "generation": history.generation}
    for name, stored in reached.items():
        if stored > (end := ends[name.rpartition(".")[2]]):
            yield Difference(field=name, stored=stored, replayed=end)
    if is_ended and history.ended is None:
        yield Difference(field="endings", stored="ended", replayed="going on")


def impossible(field: str, stored: Any, error: Exception) -> Difference:
    """What stands in a log and cannot have happened there."""
    return Difference(field=field, stored=stored, replayed=f"cannot be: {error}")


def _comparable(decision: StoredDecision) -> dict[str, Any]:
    """All that is to be the same: no times that were measured, and no version of the planner."""
    told = json.loads(decision.wording.text())
    table, name = CLOCK
    del told[table][name]
    return {
        "generation": decision.generation,
        "number": decision.number,
        "decided_at": decision.decided_at,
        "snapshot": json.loads(decision.snapshot),
        "snapshot_digest": decision.snapshot_digest,
        "decision": told,
    }
