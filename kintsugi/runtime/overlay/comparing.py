"""Whether all workers hold the same state: each says what it holds with its gradients, and all judge alike before they commit.

Memory and processors err in silence: what is no replica any more adds gradients of another model, and is what joining workers copy.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kintsugi.core.errors import CommunicationError, ConflictError, some
from kintsugi.core.overlay import Overlay
from kintsugi.runtime.overlay.committed import GivenUpError
from kintsugi.runtime.overlay.greeting import Identity
from kintsugi.runtime.overlay.messages import Message
from kintsugi.runtime.verdicts import Vote, judged

DISAGREE = "disagree"
"""A neighbour ends, for nobody can tell who is right: whoever was called off before it knew hears of it so."""

_SAME_WAY = "have the same learning rates, schedules and before_step everywhere, or test {whose} memory and processors"
_WRONG = f"holds something else than most before reduction {{number}}: {_SAME_WAY.format(whose='its')}, and join again"
_WRONG_COPY = (
    "holds something else than the others before reduction {number}, by what it was sent or since: join again; "
    f"if that repeats itself, {_SAME_WAY.format(whose='its')}"
)


class Said(NamedTuple):
    """What a worker says before a reduction that is compared."""

    kind: int
    """Of its device: unlike ones round differently, so only alike ones are compared."""
    digest: int
    """Of its state."""
    is_witness: int
    """1, or 0 where it was not compared since it got its state from others."""
    incarnation: int
    """In which life it says so."""


class WrongStateError(GivenUpError):
    """This worker holds something else than most; a new `Coordinator` joins again with what they hold."""


class WrongPeersError(CommunicationError):
    """Other workers hold something else than most, and end: nobody commits what they have added to."""

    def __init__(self, workers: Mapping[str, int], why: str) -> None:
        """`workers` with their incarnations."""
        super().__init__(why, field="workers", value=list(workers))
        self.workers = workers
        self.worker = next(iter(workers))


class DisagreementError(ConflictError):
    """Workers hold different states, and nobody can tell whose is right: none of them goes on."""

    def __init__(self, workers: Iterable[str], lives: Mapping[str, int] | None = None, number: int | None = None) -> None:
        """`workers`, and in which lives (their incarnations) before which reduction, where that is known."""
        self.workers, self.lives, self.number = tuple(sorted(workers)), dict(lives or {}), number
        when = "" if number is None else f" before reduction {number}"
        way_out = _SAME_WAY.format(whose="their")
        super().__init__(
            f"{some(self.workers)} do not hold the same{when}, and nobody can tell who is right: {way_out}, "
            "and begin again from a checkpoint of yours; where replicas are not meant to be equal (by an optimizer with a "
            "generator of its own), set compare_every_steps=None"
        )


class Comparison:
    """One worker's part in it."""

    def __init__(self, own: Identity, vote: Callable[[], Vote], every_steps: int | None) -> None:
        """`vote` says what the worker holds; `every_steps` is from one comparison to the next, null for none."""
        self._own, self._vote, self._every_steps = own, vote, every_steps
        self._is_witness = True
        self._disagreement: DisagreementError | None = None

    def hear(self, _worker: str, message: Message) -> None:
        """A neighbour tells that workers disagree; whether this one is meant, in this life."""
        lives: Mapping[str, Any] = message.fields["workers"]
        if lives.get(self._own.worker) == self._own.incarnation:
            self._disagreement = DisagreementError(lives, lives, int(message.fields["number"]))

    def heed(self, overlay: Overlay) -> None:
        """The scheduler tells the same."""
        own = next((one for one in overlay.workers if one.id == self._own.worker), None)
        if own is not None and own.incarnation == self._own.incarnation and own.disagreed_with and self._disagreement is None:
            self._disagreement = DisagreementError([own.id, *own.disagreed_with])

    def require_agreement(self) -> None:
        """Require that nobody has told otherwise.

        Raises:
            DisagreementError: somebody has.
        """
        if self._disagreement is not None:
            raise self._disagreement

    def copied(self) -> None:
        """The state is that of others: for it this worker is no witness before it was compared."""
        self._is_witness = False

    def statement(self, number: int) -> Mapping[str, Said]:
        """What this worker says before reduction `number`; nothing where that is not compared."""
        if self._every_steps is None or number % self._every_steps:
            return {}
        vote = self._vote()
        return {self._own.worker: Said(int(vote.kind), int(vote.digest), int(self._is_witness), self._own.incarnation)}

    def require_alike(self, number: int, states: Mapping[str, Sequence[int]]) -> None:
        """Require that all who said what they hold before reduction `number` hold the same.

        A worker that joined ends where it alone stands against the one that it may have its state from: such a one has nobody else.

        Raises:
            WrongStateError: this worker holds something else than most, or than others of its kind where other kinds agree.
            WrongPeersError: others do.
            DisagreementError: nobody can tell who is right.
        """
        said = {worker: Said(*told) for worker, told in states.items()}
        wrong = _wrong(said)
        own = self._own.worker
        if wrong is None:
            self._disagreement = DisagreementError(said, {worker: one.incarnation for worker, one in said.items()}, number)
            raise self._disagreement
        if own in wrong:
            why = _WRONG if said[own].is_witness else _WRONG_COPY
            raise WrongStateError(why.format(number=number), field="worker", value=own)
        if wrong:
            raise WrongPeersError({worker: said[worker].incarnation for worker in wrong}, _WRONG.format(number=number))
        if own in said:
            self._is_witness |= any(one.kind == said[own].kind for worker, one in said.items() if worker != own)


def _wrong(said: Mapping[str, Said]) -> Sequence[str] | None:
    """Who holds something else than most; null where nobody can tell."""
    votes = {worker: Vote(one.kind, one.digest) for worker, one in said.items()}
    verdict = judged({0: votes}, {(0, worker) for worker, one in said.items() if not one.is_witness}, prefers_sources=True)
    if verdict.wrong or not verdict.layers:
        return verdict.wrong
    digests: dict[int, set[int]] = defaultdict(set)
    for one in said.values():
        digests[one.kind].add(one.digest)
    doubtful = sorted(worker for worker, one in said.items() if len(digests[one.kind]) > 1)
    return doubtful if len(doubtful) < len(said) else None
