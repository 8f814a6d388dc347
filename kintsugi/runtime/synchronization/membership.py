"""What workers tell each other when a membership begins: who knows the model, who is how far, and who has it all to learn."""

import io
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from kintsugi.core.errors import InvalidInputError
from kintsugi.runtime.synchronization.transport import Transport
from kintsugi.runtime.values import from_plain, to_plain
from kintsugi.runtime.workers.commit import CommitRecord, StepStatus

_NONE = -1
_ROW = 5
"""Numbers that tell a worker's standing."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where one member is."""

    status: StepStatus
    strategy: int
    """By its place among those that every worker was given."""
    digest: int = 0
    """Of its model, where all are to have the same."""


@dataclass(frozen=True, slots=True)
class RollCall:
    """Where every worker is, by rank; None for those that join."""

    standings: tuple[Standing | None, ...]

    @classmethod
    def gathered(cls, transport: Transport, own: Standing | None) -> Self:
        """What all workers tell each other.

        Raises:
            CommunicationError: a worker is gone.
        """
        rows = torch.zeros(transport.num_workers, _ROW, dtype=torch.int64)
        rows[transport.rank] = _row(own)
        return cls(tuple(_standing(*told) for told in transport.begin_sum(rows).wait().tolist()))

    @property
    def members(self) -> list[Standing]:
        """Those that do not join."""
        return [standing for standing in self.standings if standing is not None]

    @property
    def has_joiners(self) -> bool:
        """Whether some worker knows nothing yet."""
        return None in self.standings

    @property
    def source(self) -> int:
        """Who tells them; rank 0 where there is no member.

        The one that took the most steps, of several one with the model that most of these have, of those the one of lowest rank.
        """
        most = max(map(self._num_steps, range(len(self.standings))))
        usual = Counter(member.digest for member in self.members if member.status.step == most)
        return max(range(len(self.standings)), key=lambda rank: (self._num_steps(rank), usual[self._digest(rank)], -rank))

    @property
    def is_abreast(self) -> bool:
        """Whether all members took the same number of steps."""
        return len({member.status.step for member in self.members}) <= 1

    def is_behind(self, rank: int) -> bool:
        """Whether a worker took fewer steps than another one."""
        return self._num_steps(rank) < self._num_steps(self.source)

    @property
    def has_one_model(self) -> bool:
        """Whether all members have the same; one that missed a membership may have another after as many steps."""
        return len({member.digest for member in self.members}) <= 1

    def has_other_model(self, rank: int) -> bool:
        """Whether a worker has not the model of who tells."""
        return self._digest(rank) != self._digest(self.source)

    def _digest(self, rank: int) -> int:
        standing = self.standings[rank]
        return 0 if standing is None else standing.digest

    def _num_steps(self, rank: int) -> int:
        standing = self.standings[rank]
        return _NONE if standing is None else standing.status.step

    @property
    def is_agreed(self) -> bool:
        """Whether all members follow the same strategy; a loss in the middle of a change leaves them apart."""
        return len({member.strategy for member in self.members}) <= 1

    def must_roll_forward(self, own: Standing) -> bool:
        """Whether another member has committed the step that this one has all that it needs for, and none a later one."""
        return own.status.is_reduced and own.status.step == self._last_committed

    def cannot_follow(self, own: Standing) -> bool:
        """Whether another member has committed a step that this one can take no more: it missed a membership."""
        return own.status.step <= self._last_committed and not self.must_roll_forward(own)

    @property
    def _last_committed(self) -> int:
        return max((m.status.last_record.step for m in self.members if m.status.last_record is not None), default=_NONE)


def _row(own: Standing | None) -> Tensor:
    if own is None:
        return torch.full((_ROW,), _NONE)
    committed = _NONE if own.status.last_record is None else own.status.last_record.step
    return torch.tensor([own.strategy, own.status.step, int(own.status.is_reduced), committed, own.digest])


def _standing(strategy: int, step: int, is_reduced: int, committed: int, digest: int) -> Standing | None:
    if strategy == _NONE:
        return None
    record = None if committed == _NONE else record_of(committed)
    return Standing(StepStatus(step=step, is_reduced=bool(is_reduced), last_record=record), strategy, digest)


def record_of(step: int) -> CommitRecord:
    """That a step is committed; norms and losses are the trainer's own here."""
    return CommitRecord(step=step, squared_norm=0.0, loss=0.0)


def broadcast(transport: Transport, source: int, content: Mapping[str, Any]) -> Any:
    """What the worker of rank `source` gives: tensors, numbers and text, bit for bit; everybody takes part.

    Raises:
        CommunicationError: a worker is gone.
        InvalidInputError: the content holds what is neither plain nor a tensor; all workers find the same.
    """
    packed = _packed(content) if transport.rank == source else torch.zeros(0, dtype=torch.uint8)
    size = int(transport.begin_sum(torch.tensor([len(packed)])).wait())
    told = packed if transport.rank == source else torch.zeros(size, dtype=torch.uint8)
    transport.begin_sum(told).wait()
    text, tensors, refusal = torch.load(io.BytesIO(told.numpy().tobytes()), weights_only=True)
    if refusal is not None:
        raise InvalidInputError(refusal["message"], field=refusal["field"])
    return {name: from_plain(value, tensors) for name, value in json.loads(text).items()}


def _packed(content: Mapping[str, Any]) -> Tensor:
    """A text and the tensors that it numbers, or why there are none. Shape [bytes]."""
    tensors: list[Tensor] = []
    text, refusal = "", None
    try:
        text = json.dumps({name: to_plain(value, name, tensors) for name, value in content.items()})
    except InvalidInputError as error:
        tensors, refusal = [], {"message": error.message, "field": error.field}
    stream = io.BytesIO()
    torch.save((text, [tensor.detach().cpu() for tensor in tensors], refusal), stream)
    return torch.frombuffer(bytearray(stream.getvalue()), dtype=torch.uint8)
