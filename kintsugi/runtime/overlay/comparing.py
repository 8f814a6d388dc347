"""Whether all workers hold the same state: each says what it holds with its gradients, and all judge alike before they commit.

Memory and processors err in silence: what is no replica any more adds gradients of another model, and is what joining workers copy.
"""

from collections.abc import Callable, Mapping, Sequence

from kintsugi.core.errors import CommunicationError, ConflictError, some
from kintsugi.runtime.overlay.committed import GivenUpError
from kintsugi.runtime.overlay.messages import Message
from kintsugi.runtime.verdicts import Vote, judged

DISAGREE = "disagree"
"""A neighbour ends, for nobody can tell who is right: whoever was called off before it knew hears of it so."""

States = Mapping[str, Sequence[int]]
"""By worker: kind of its device, digest, and whether it is a witness (1) or was not compared since it got its state (0)."""


class WrongStateError(GivenUpError):
    """This worker holds something else than most; a new `Coordinator` joins again with what they hold."""


class WrongPeersError(CommunicationError):
    """Other workers hold something else than most, and end: nobody commits what they have added to."""

    def __init__(self, workers: Sequence[str]) -> None:
        super().__init__("hold something else than most", field="workers", value=list(workers))
        self.worker = workers[0]


class DisagreementError(ConflictError):
    """Workers hold different states, and nobody can tell whose is right: none of them goes on."""

    def __init__(self, number: int, workers: Sequence[str]) -> None:
        """Before reduction `number`."""
        self.number, self.workers = number, tuple(workers)
        super().__init__(
            f"{some(workers)} do not hold the same before reduction {number}, and nobody can tell who is right: test their memory "
            "and processors, and begin again from a checkpoint of yours; where replicas are not meant to be equal (by an "
            "optimizer with a generator of its own), set compare_every_steps=None"
        )


class Comparison:
    """One worker's part in it."""

    def __init__(self, worker: str, vote: Callable[[], Vote], every_steps: int | None) -> None:
        """`vote` says what the worker holds; `every_steps` is from one comparison to the next, null for none."""
        self._worker, self._vote, self._every_steps = worker, vote, every_steps
        self._is_witness = True
        self._disagreement: DisagreementError | None = None

    def hear(self, _worker: str, message: Message) -> None:
        """A neighbour tells that workers disagree."""
        self._disagreement = DisagreementError(int(message.fields["number"]), [str(worker) for worker in message.fields["workers"]])

    def require_agreement(self) -> None:
        """Require that no neighbour has told otherwise.

        Raises:
            DisagreementError: one has.
        """
        if self._disagreement is not None:
            raise self._disagreement

    def copied(self) -> None:
        """The state is that of others: for it this worker is no witness before it was compared."""
        self._is_witness = False

    def told(self, number: int) -> States:
        """What this worker says before reduction `number`; nothing where that is not compared."""
        if self._every_steps is None or number % self._every_steps:
            return {}
        vote = self._vote()
        return {self._worker: (int(vote.kind), int(vote.digest), int(self._is_witness))}

    def require_alike(self, number: int, states: States) -> None:
        """Require that all who said what they hold before reduction `number` hold the same.

        Raises:
            WrongStateError: this worker holds something else than most.
            WrongPeersError: others do.
            DisagreementError: nobody can tell who is right.
        """
        votes = {worker: Vote(kind, digest) for worker, (kind, digest, _) in states.items()}
        copied = {(0, worker) for worker, (_, _, is_witness) in states.items() if not is_witness}
        verdict = judged({0: votes}, copied)
        if not verdict.layers:
            self._is_witness = self._is_witness or self._worker in states
        elif self._worker in verdict.wrong:
            message = f"holds something else than most before reduction {number}: test its memory and processors, and join again"
            raise WrongStateError(message, field="worker", value=self._worker)
        elif verdict.wrong:
            raise WrongPeersError(verdict.wrong)
        else:
            raise DisagreementError(number, sorted(states))
