"""The writing half of the service: entries go into a job's log with what follows from them, durable before it is told."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import structlog

from api.decisions import planning
from api.decisions.contingencies import Contingencies
from api.decisions.deciding import Decider, Outcome
from api.decisions.warm import fork_server
from api.decisions.workshop import Workshop
from api.jobs.clock import utc_now
from api.jobs.headlines import headlines, is_routine, said
from api.jobs.history import Content, Entry, History
from api.metrics import Metrics
from api.records import JobState, Planned, Records
from api.storage.database import OvertakenError, TakenError
from api.storage.legible import contradictory
from api.storage.store import Store
from api.storage.stored import Appointment, WriteKey
from kintsugi.core.errors import UnavailableError
from kintsugi.core.handling import DeadlineKind, Expiry
from kintsugi.core.membership import Event

ATTEMPTS = 20
"""How often a write looks again when another process was first."""

Accept = Callable[[JobState], Entry | Sequence[Content]]
"""From the present state to the contents to append, or to the entry that holds them already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """New entries of one log, and what follows from them."""

    entries: tuple[Entry, ...]
    outcome: Outcome
    after: History


class Ledger(Records):
    """Appends to logs; safe for several threads, and for several processes on one database."""

    def __init__(
        self,
        store: Store,
        metrics: Metrics,
        *,
        now: Callable[[], str] = utc_now,
        ahead: Contingencies | None = None,
        workshop: Workshop | None = None,
    ) -> None:
        super().__init__(store)
        self.decider = Decider(metrics, ahead, workshop or Workshop(0, fork_server()))
        self.now = now
        self._metrics = metrics
        self._log = structlog.get_logger("kintsugi.api")

    def expire(self, job: str) -> History:
        """Log every deadline of a job that has passed, with what follows; the history then.

        Raises:
            NotFoundError: there is no such job.
        """
        state = self.state(job)
        while self._is_due(state):
            entry = self.write(job, None, self._expiry)
            if entry is not None and isinstance(entry.content, Expiry) and entry.content.kind is not DeadlineKind.EVENTS:
                expired = entry.content
                self._log.warning("waited in vain", job=job, generation=expired.generation, waited_for=expired.kind.value)
            state = self.state(job)
        return state.history

    def write(self, job: str, key: WriteKey | None, accept: Accept) -> Entry | None:
        """Append what `accept` makes of the present state, again and again until no other writer was first.

        Args:
            job: id of the job.
            key: a write that came with it before is not repeated.
            accept: raises what it refuses.

        Returns:
            The last entry that holds the contents; none where there were none.

        Raises:
            ContradictoryError: it cannot be appended although nobody else did: what is stored of the job contradicts itself.
            UnavailableError: other processes were first again and again.
        """
        taken_behind = None
        for _ in range(ATTEMPTS):
            with self.store.looking():
                state = self.state(job)
                told = self._remembered(key) or accept(state)
            if isinstance(told, Entry):
                return told
            try:
                return self._append(state, told, key) if told else None
            except OvertakenError as error:
                if isinstance(error, TakenError):
                    if state.head == taken_behind:  # whoever took the place would have moved it
                        raise contradictory(job, f"its log ends at entry {state.head.number}, other tables go on") from error
                    taken_behind = state.head
                self._log.info("another writer was first: what was decided does not count", job=job)
        raise UnavailableError(f"other processes kept writing to job {job!r}; try again")

    def may_be_due(self, job: str) -> bool:
        """Whether a deadline of a job has passed, as far as this process knows the job."""
        state = self.known_state(job)
        return state is None or self._is_due(state)

    def keep_state(self, state: JobState) -> None:
        """Remember a state that the store holds, and be ready for what may be asked of its job."""
        super().keep_state(state)
        if state.history.ended is None and _may_search_long(state):
            self.decider.expect_long()

    def may_search_long(self, job: str) -> bool:
        """Whether a search for a job may be long, as far as this process knows the job."""
        state = self.known_state(job)
        return state is not None and _may_search_long(state)

    def look_ahead(self, state: JobState) -> None:
        """Have plans made for what may be lost next."""
        self.decider.look_ahead(state.job.id, lambda: self.snapshot(state, state.history))

    def _is_due(self, state: JobState) -> bool:
        return state.history.passed(self.now()) is not None

    def _expiry(self, state: JobState) -> Sequence[Expiry]:
        deadline = state.history.passed(self.now())
        if deadline is None:
            return ()
        return (Expiry(kind=deadline.kind, generation=deadline.generation),)

    def _remembered(self, key: WriteKey | None) -> Entry | None:
        remembered = self.store.remembered(key)
        return None if remembered is None else self.store.entry(*remembered)

    def _append(self, state: JobState, contents: Sequence[Content], key: WriteKey | None) -> Entry:
        chapter = self._chapter(state, contents)
        before, after = state.history, chapter.after
        self._commit(state, chapter, key)
        self._tell(state, chapter)
        for entry in chapter.entries:
            self.heard(state.job.id, entry)
        known = replace(state, history=after, heard_at=chapter.entries[-1].received_at)
        self.keep_state(known)
        if after.ended is not None:
            self.decider.forget(state.job.id)
        elif (after.generation, after.applied_generation) != (before.generation, before.applied_generation):
            self.look_ahead(known)
        self._metrics.logged(contents)
        return chapter.entries[-1]

    def _tell(self, state: JobState, chapter: Chapter) -> None:
        """Say in the service's log what stands in the job's, now that it is durable."""
        contents, last = [entry.content for entry in chapter.entries], chapter.entries[-1]
        log = self._log.debug if all(map(is_routine, contents)) else self._log.info
        told: dict[str, object] = {"number": last.number, "generation": last.generation, "decided": last.decided, **said(contents)}
        told |= {"problem": last.problem["code"]} if last.problem else {}
        told |= {"deferred": True} if last.deferred else {}
        told |= _in_vain(state.history, contents)
        log("logged", job=state.job.id, what=headlines(contents), **told)

    def _chapter(self, state: JobState, contents: Sequence[Content]) -> Chapter:
        now = self.now()
        histories = list(accumulate(contents, lambda past, content: past.after(content, now), initial=state.history))[1:]
        last = histories[-1]
        is_called_for = last.calls_for_a_plan(state.history, contents)
        deferred = is_called_for and last.is_deferred(contents)
        decides = is_called_for and not deferred
        outcome = self.decider.outcome(self.snapshot(state, last), state.job.id) if decides else Outcome()
        after = last.deferred(now) if deferred else _concluded(last, outcome, now)
        entries = tuple(
            Entry(
                number=history.number,
                received_at=now,
                content=content,
                generation=after.generation,
                decided=outcome.decided is not None and history is last,
                problem=outcome.problem,
                deferred=deferred,
            )
            for history, content in zip(histories, contents, strict=True)
        )
        return Chapter(entries=entries, outcome=outcome, after=after)

    def _commit(self, state: JobState, chapter: Chapter, key: WriteKey | None) -> None:
        job, last, outcome = state.job.id, chapter.entries[-1], chapter.outcome
        moved = Appointment(before=_due_at(state.history), after=_due_at(chapter.after))
        if outcome.snapshot is None or outcome.decided is None:
            self.store.append(job, state.head, chapter.entries, key=key, history=chapter.after, deadline=moved)
            return
        stored, cluster = planning.stored(
            outcome.decided.wording,
            outcome.snapshot,
            profile=state.job.profile,
            settings=state.job.settings,
            number=last.number,
            decided_at=last.received_at,
        )
        self.store.append(
            job,
            state.head,
            chapter.entries,
            documents=(cluster,),
            decision=stored,
            key=key,
            history=chapter.after,
            deadline=moved,
        )
        if outcome.decided.plan is not None:
            self.keep_plan(job, stored, Planned(outcome.decided.plan, outcome.snapshot.cluster))


def _in_vain(before: History, contents: Sequence[Content]) -> dict[str, object]:
    """What events say that changes nothing, for those who told it and wonder."""
    events = [content for content in contents if isinstance(content, Event)]
    past = [event for event in events if before.is_of_a_past_life(event)]
    unheeded = sorted({field for event in events for field in event.unheeded})
    return ({"of_a_past_life": headlines(past)} if past else {}) | ({"unheeded": unheeded} if unheeded else {})


def _concluded(history: History, outcome: Outcome, now: str) -> History:
    if outcome.decided is not None:
        return history.decided(now)
    return history if outcome.problem is None else history.undecided(outcome.problem)


def _due_at(history: History) -> str | None:
    return None if history.deadline is None else history.deadline.at


def _may_search_long(state: JobState) -> bool:
    return planning.is_long(state.profile.num_layers, len(state.history.membership.alive))
