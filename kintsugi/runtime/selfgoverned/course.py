"""What the members of a ring have agreed on, generation by generation; all of them derive the same from it, asking nobody."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kintsugi.core.decision import Decision
from kintsugi.core.job import JobSettings, Snapshot
from kintsugi.core.membership import Event, EventKind, Membership
from kintsugi.core.plan import Plan
from kintsugi.core.profile import Profile
from kintsugi.runtime.control.decisions import JobRequest
from kintsugi.runtime.ring.messages import Agreement, Contribution, Joiner
from kintsugi.runtime.selfgoverned.notes import Newcomer, Note, Reachable, heard
from kintsugi.runtime.workers.commit import CommitRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """One generation as all of its members know it."""

    job: str
    profile: Profile
    settings: JobSettings
    membership: Membership
    decision: Decision
    """Of this generation."""
    applied: Plan
    """Says where the state lies: the plan of the latest generation whose members all were ready for it."""
    stateless: tuple[str, ...] = ()
    """Members that have come since that plan was applied."""
    committed_step: int = -1
    """The last step that counts as committed where this generation begins."""
    record: CommitRecord | None = None
    """Of that step's commit point."""
    incarnations: Mapping[str, int] = field(default_factory=dict)
    """Process lives of members that came back."""
    agreement: Agreement | None = None
    """That led to this generation; null for the first."""
    came_from: Mapping[str, Reachable] = field(default_factory=dict)
    """Where members are reached that have come since the first generation: which of a worker's processes is meant."""

    @property
    def members(self) -> tuple[str, ...]:
        """Who is in the ring: also those that leave, until their processes end."""
        return (*self.membership.alive, *self.membership.draining)

    @property
    def staying(self) -> tuple[str, ...]:
        """Who was to leave and trains on, for no plan can do without."""
        return tuple(worker for worker in self.membership.draining if worker in self.decision.plan.workers)

    @property
    def generation(self) -> int:
        """Of the membership."""
        return self.decision.plan.generation

    def events(self, agreement: Agreement) -> tuple[Event, ...]:
        """What happened between this generation and the one that was agreed on, as every member tells it."""
        known = self.members
        lost = [self._event(EventKind.WORKER_FAILED, worker) for worker in known if worker not in agreement.members]
        leaving = [self._event(EventKind.WORKER_DRAINING, worker) for worker in self._leaving(agreement)]
        hosts = {joiner.worker: Newcomer.parsed(joiner.note).host for joiner in agreement.newcomers}
        joined = [
            self._event(EventKind.WORKER_JOINED, worker, hosts.get(worker)) for worker in agreement.members if worker not in known
        ]
        return (*lost, *leaving, *joined)

    def _leaving(self, agreement: Agreement) -> list[str]:
        """Who says for the first time that it leaves, and is still there."""
        noted = [contribution.worker for contribution in agreement.contributions if _is_leaving(contribution)]
        return [worker for worker in noted if worker in agreement.members and worker in self.membership.alive]

    def _event(self, kind: EventKind, worker: str, host: str | None = None) -> Event:
        came = kind is EventKind.WORKER_JOINED
        return Event(
            kind=kind,
            id=f"{self.job}.ring{self.generation}.{kind.value}.{worker}",
            generation=self.generation,
            worker=worker,
            host=host,
            incarnation=self.incarnations.get(worker, 0) + came,
        )

    def snapshot(self, agreement: Agreement) -> Snapshot:
        """What the decision of the agreed generation is a pure function of."""
        after = self.settled(agreement)
        return Snapshot(
            profile=self.profile,
            cluster=after.membership.cluster,
            settings=self.settings,
            plan=after.applied,
            alive=after.membership.alive,
            generation=agreement.generation,
            stateless=tuple(worker for worker in after.stateless if worker in after.applied.pipeline_of),
            draining=tuple(worker for worker in after.membership.draining if worker in after.applied.pipeline_of),
        )

    def joining(self, joiner: Joiner) -> Snapshot:
        """The snapshot of the next decision if this generation's plan is applied, and nothing happens but that a worker joins."""
        contribution = Contribution(self.decision.plan.workers[0], self.committed_step, Note(self.generation, self.record).text())
        return self.snapshot(Agreement(self.generation + 1, (*self.members, joiner.worker), (contribution,), joined=(joiner,)))

    def leaving(self, worker: str) -> Snapshot:
        """The same if nothing happens but that a worker leaves once others have its state."""
        note = Note(self.generation, self.record, is_leaving=True)
        contribution = Contribution(worker, self.committed_step, note.text())
        return self.snapshot(Agreement(self.generation + 1, self.members, (contribution,)))

    def base(self) -> Snapshot:
        """The snapshot of the next decision if this generation's plan is applied and nothing happens to its members."""
        return Snapshot(
            profile=self.profile,
            cluster=self.membership.cluster,
            settings=self.settings,
            plan=self.decision.plan,
            alive=self.membership.alive,
            generation=self.generation + 1,
        )

    def after(self, agreement: Agreement) -> "Course":
        """The generation that was agreed on, under the plan that the agreement tells.

        Raises:
            KintsugiError: there is no plan for it.
        """
        return replace(self.settled(agreement), decision=heard(agreement.note))

    def settled(self, agreement: Agreement) -> "Course":
        """What the contributions of an agreement settle; the decision is still this generation's."""
        notes = [Note.parsed(contribution.note) for contribution in agreement.contributions if contribution.note]
        events = self.events(agreement)
        membership = self.membership
        for event in events:
            membership = membership.after(event)
        came = {event.worker: event.incarnation for event in events if event.kind is EventKind.WORKER_JOINED and event.worker}
        is_applied = self._is_applied(notes, membership)
        return replace(
            self,
            membership=membership,
            applied=self.decision.plan if is_applied else self.applied,
            stateless=tuple(w for w in (*(() if is_applied else self.stateless), *came) if w in membership.alive),
            committed_step=agreement.committed_step,
            record=self._record(agreement.committed_step, notes),
            incarnations={**self.incarnations, **came},
            agreement=agreement,
            came_from={**self.came_from, **{joiner.worker: _reachable(joiner) for joiner in agreement.newcomers}},
        )

    def _is_applied(self, notes: list[Note], membership: Membership) -> bool:
        """Whether any survivor, and so every one, is to hold its state as this generation's plan has it.

        Whoever applied it did so once all were ready; so the others can. Where nobody is left who has a slot in it, steps may
        have been committed under it that nobody knows of.
        """
        is_known = any(note.applied == self.generation for note in notes)
        return is_known or not set(self.decision.plan.workers) & set(membership.alive)

    def _record(self, committed_step: int, notes: list[Note]) -> CommitRecord | None:
        told = (note.record for note in notes if note.record is not None and note.record.step == committed_step)
        return next(told, self.record)


def _reachable(joiner: Joiner) -> Reachable:
    return Reachable(joiner.address, Newcomer.parsed(joiner.note).switchboard)


def _is_leaving(contribution: Contribution) -> bool:
    return bool(contribution.note) and Note.parsed(contribution.note).is_leaving


def first_course(request: JobRequest, alive: tuple[str, ...], decision: Decision) -> Course:
    """The generation in which a job's workers found their ring."""
    return Course(
        job=request.name,
        profile=request.profile,
        settings=request.settings,
        membership=Membership(cluster=request.cluster, alive=alive),
        decision=decision,
        applied=decision.plan,
    )
