"""What is known of pipelines of equal workers beyond closed-form bounds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from estimator.arrays import Floats
from planner.pipelines.kinds import ANY, Firsts, WorkerKind
from planner.pipelines.partition import Attained, Partitioner, Split

Entry = tuple[int, int]
"""Length and micro-batches of a pipeline."""


@dataclass(frozen=True, slots=True)
class Entries:
    """Bounds and splits of one of several pipelines of equal workers, each found once."""

    partitioner: Partitioner
    kind: WorkerKind
    tail: Floats
    least_update: float
    firsts: Firsts = ANY
    _attained: dict[Entry, Attained] = field(default_factory=dict, init=False)
    _splits: dict[Entry, Split | None] = field(default_factory=dict, init=False)

    @property
    def tolerance(self) -> float:
        """Relative difference between bound and price that does not matter."""
        return self.partitioner.tolerance

    @property
    def num_bounds(self) -> int:
        """Bounds that were found."""
        return len(self._attained)

    @property
    def num_splits(self) -> int:
        """Splits that were looked for."""
        return len(self._splits)

    def known_bounds(self) -> Iterator[tuple[Entry, float]]:
        """Entries of which the dynamic program's bound is known, and that bound in seconds."""
        return ((entry, attained.seconds) for entry, attained in self._attained.items())

    def attain(self, entry: Entry) -> Attained:
        """The dynamic program's bound."""
        if entry not in self._attained:
            kinds = (self.kind,) * entry[0]
            self._attained[entry] = self.partitioner.attain(kinds, entry[1], self.tail, self.least_update, self.firsts)
        return self._attained[entry]

    def look(self, entry: Entry) -> Split | None:
        """The best split that is found, with the best bound; None where no split fits memory."""
        if entry not in self._splits:
            self._splits[entry] = self.partitioner.best(self.attain(entry))
        return self._splits[entry]

    def nearby(self, entry: Entry, cuts: Sequence[int], below: float) -> list[tuple[int, ...]]:
        """Splits of an entry next to another one that have a shorter objective than `below`, the shortest first."""
        return self.partitioner.nearby(self.attain(entry), cuts, below)
