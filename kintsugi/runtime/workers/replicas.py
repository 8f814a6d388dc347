"""Whether all holders of a layer hold the same state. Memory and processors err in silence, and what errs would be migrated.

Every holder tells a digest of what it holds; the digests of all come together in one all-reduce, so that all workers judge alike.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from kintsugi.core.decision import StateKind
from kintsugi.core.errors import CommunicationError, some
from kintsugi.core.plan import Plan
from kintsugi.runtime.digests import entries_digest
from kintsugi.runtime.layer import Layer
from kintsugi.runtime.verdicts import Slot, Verdict, Vote, judged
from kintsugi.runtime.workers.state import ModelState
from restorer.groups import Groups


class ReplicasDifferError(CommunicationError):
    """Holders of a layer do not hold the same: nobody goes on from that."""

    def __init__(self, step: int, verdict: Verdict, names: Sequence[str]) -> None:
        """`step` is the next to apply, `names` are those of the layers."""
        who = f"wrong on {some(verdict.wrong)}" if verdict.wrong else "nobody can tell which of them is right"
        super().__init__(f"replicas of {some(names)} differ before step {step}: {who}")
        self.step, self.verdict = step, verdict


def slots_of(plan: Plan) -> list[Slot]:
    """What can be compared: layers that several workers of a plan hold, with each of these."""
    return [(layer, holder) for layer, holders in enumerate(plan.holders) if len(holders) > 1 for holder in holders]


class Comparison:
    """Of what several workers hold, over the steps of one attempt."""

    def __init__(
        self,
        worker: str,
        workers: tuple[str, ...],
        slots: Sequence[Slot],
        *,
        kind: int = 0,
        every_steps: int | None = None,
        copied: Collection[int] = frozenset(),
    ) -> None:
        """Prepare the comparisons.

        Args:
            worker: this one.
            workers: all who take part; the same on each.
            slots: layers and holders that are compared; the same on all.
            kind: of the worker's device.
            every_steps: from one comparison to the next, beside those that are due in any case; null: none is due.
            copied: layers that this worker got from another one, or from a checkpoint, and that were not compared since: it is no
                witness for them.
        """
        self._worker, self._kind = worker, kind
        self.copied = frozenset(copied)
        """As above, so far."""
        self._workers, self._slots = workers, slots
        self._every_steps = every_steps if self._slots else None
        self._is_due = True

    @property
    def is_on(self) -> bool:
        """Whether steps compare anything: that was asked for, and a layer has two holders."""
        return self._every_steps is not None

    def is_due(self, step: int) -> bool:
        """Whether the state before `step` is compared: in the first step, after every checkpoint, and as often as was asked for."""
        return self._every_steps is not None and (self._is_due or step % self._every_steps == 0)

    def statement(self, state: ModelState | None) -> Tensor:
        """What this worker says, zeros in the places of all others: on the host, to be added up over all. Shape [words].

        Who has no state, as a process that has just begun in the place of a holder, says nothing.
        """
        kinds = [self._kind if worker == self._worker else 0 for worker in self._workers]
        is_own = [state is not None and holder == self._worker and layer in state.modules for layer, holder in self._slots]
        own = list(zip(self._slots, is_own, strict=True))
        digests = [state_digest(state, layer) if state is not None and is_here else 0 for (layer, _), is_here in own]
        says = [(_COPY if layer in self.copied else _WITNESS) if is_here else _NOTHING for (layer, _), is_here in own]
        return torch.tensor([*kinds, *digests, *says], dtype=torch.float64)

    def verdict(self, told: Sequence[float]) -> Verdict:
        """What all say together, which is the same on all."""
        kinds = dict(zip(self._workers, told, strict=False))
        first, behind = len(self._workers), len(self._workers) + len(self._slots)
        votes: dict[int, dict[str, Vote]] = defaultdict(dict)
        says = dict(zip(self._slots, told[behind:], strict=True))
        for (layer, holder), digest in zip(self._slots, told[first:behind], strict=True):
            if says[layer, holder] != _NOTHING:
                votes[layer][holder] = Vote(kinds[holder], digest)
        self.copied -= votes.keys()
        return judged(votes, {slot for slot, said in says.items() if said == _COPY})

    def heard(self, state: ModelState | None, groups: Groups) -> list[float]:
        """What all who take part say together, once all have said it.

        Raises:
            CommunicationError: one of them is gone, or the attempt was called off.
        """
        told = self.statement(state)
        groups.all_reduce(told, self._workers)
        heard: list[float] = told.tolist()
        return heard

    def require_agreement(self, step: int, told: Sequence[float], layers: Sequence[Layer]) -> None:
        """Require that all holders said the same; `layers` are those of the job.

        Raises:
            ReplicasDifferError: they did not.
        """
        if (verdict := self.verdict(told)).layers:
            raise ReplicasDifferError(step, verdict, [layers[layer].name for layer in verdict.layers])

    def took(self, *, has_checkpoint: bool) -> None:
        """A step was applied; with a checkpoint of the state after it, that is what the next comparison is about."""
        self._is_due = has_checkpoint


_NOTHING, _WITNESS, _COPY = range(3)
"""What a worker is for a slot: no holder, one that knows, and one that says what its source said."""


def state_digest(state: ModelState, layer: int) -> int:
    """Of everything that a layer's next steps follow from: parameters, buffers and optimizer state."""
    return entries_digest(state.export(layer, StateKind.PARAMETER) | state.export(layer, StateKind.OPTIMIZER))
