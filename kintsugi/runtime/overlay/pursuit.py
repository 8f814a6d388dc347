"""A joining worker after the others: one of its sources tells it the reductions since the copy, another one where that is lost."""

from collections.abc import Callable

from kintsugi.core.overlay import Overlay, Replication
from kintsugi.runtime.overlay.agent import Agent
from kintsugi.runtime.overlay.arrival import Arrival
from kintsugi.runtime.overlay.committed import Committed, LostTrackError
from kintsugi.runtime.overlay.following import ELSEWHERE, FOLLOW
from kintsugi.runtime.overlay.links import Links
from kintsugi.runtime.overlay.messages import Message
from kintsugi.runtime.overlay.options import OverlayOptions
from kintsugi.runtime.overlay.reduction import Vector
from kintsugi.runtime.overlay.trail import Trail

_LEAST_ROUNDS = 2


class Pursuit:
    """Whom a joining worker asks, and how much it has room for."""

    def __init__(
        self, agent: Agent, links: Links, memory: Callable[[], Vector], options: OverlayOptions, on_change: Callable[[], None]
    ) -> None:
        """Nobody is asked yet; `memory` gives room for one vector, `on_change` is called when there is something to do."""
        self._agent, self._links, self._memory, self._on_change = agent, links, memory, on_change
        self._num_rounds = max(_LEAST_ROUNDS, options.max_waiting_bytes // max(1, memory().nbytes))
        self._trail: Trail | None = None
        self._replication: Replication | None = None
        self._silent: set[str] = set()
        self._spared: set[str] = set()
        self._allowed = 0

    def hear(self, worker: str, message: Message) -> None:
        """Take a part of a reduction."""
        trail = self._trail
        if trail is not None:
            trail.take(worker, message)

    def hear_forgotten(self, worker: str, message: Message) -> None:
        """A source cannot tell what it was asked for."""
        trail = self._trail
        if trail is not None and message.fields["replication"] == trail.generation:
            self._silent.add(worker)
            self._on_change()

    def pop(self, takes_last: Callable[[Committed], bool]) -> Committed | None:
        """The next reduction; None where it was not heard yet, or is the last and `takes_last` says no.

        If its teller dies, the others may not have the last one and sum it anew without the teller: it is for a worker that takes
        part after it, for which the others wait.
        """
        return None if self._trail is None else self._trail.pop(takes_last)

    def go_on(self, overlay: Overlay, arrival: Arrival, number: int) -> None:
        """Ask somebody, or for more; `number` is that of the last reduction that takes no room here.

        Raises:
            LostTrackError: none of the sources is left that could be asked.
        """
        self._look(overlay, arrival.generation)
        if self._replication is None:
            return
        trail = self._trail
        if trail is None or trail.generation != arrival.generation:
            assert arrival.at is not None
            trail = self._trail = Trail(arrival.generation, arrival.at, self._memory, self._on_change)
            self._silent.clear()
            self._spared.clear()
        if trail.teller not in (candidates := self._candidates(overlay, self._replication)):
            trail.begin(self._chosen(overlay, arrival, candidates))
            self._ask(trail, number, after=list(trail.heard))
        elif trail.heard.number + self._num_rounds // 2 > self._allowed and number + self._num_rounds > self._allowed:
            self._ask(trail, number)
        self._spare_others(trail, arrival)

    def remember(self, replication: Replication) -> None:
        """Whose copies the state is of: it may be over by the time that somebody is to be asked."""
        self._replication = replication

    def end(self) -> None:
        """Nothing more is wanted."""
        self._trail = None

    def _ask(self, trail: Trail, number: int, **fields: list[int]) -> None:
        if trail.teller is not None:
            self._allowed = number + self._num_rounds
            self._links.tell(trail.teller, FOLLOW, {"replication": trail.generation, "up_to": self._allowed, **fields})

    def _spare_others(self, trail: Trail, arrival: Arrival) -> None:
        """Tell sources that expect to be asked that another one is: their training need not wait for it."""
        if trail.teller is None:
            return
        self._spared.discard(trail.teller)
        for other in arrival.opened - self._spared - {trail.teller}:
            if self._links.tell(other, ELSEWHERE, {"replication": trail.generation}):
                self._spared.add(other)

    def _look(self, overlay: Overlay, generation: int) -> None:
        """Find out who the sources are, who may begin before that is known here; it is remembered once the replication is over."""
        own = self._agent.identity.worker
        if self._replication is not None and self._replication.generation != generation:
            self._replication = None
        for one in overlay.replications:
            if (one.joiner, one.generation) == (own, generation):
                self._replication = one

    def _candidates(self, overlay: Overlay, replication: Replication) -> list[str]:
        """Sources that take part in the reductions and can be asked; none while those whose link broke are not replaced yet."""
        own = self._agent.identity.worker
        sources = {share.source for share in replication.shares} - self._silent
        among = sources.intersection(overlay.synchronization.order, overlay.neighbors(own))
        if not among:
            raise LostTrackError("no source is left that could tell what the others did", field="worker", value=own)
        return sorted(among.intersection(self._links.up))

    def _chosen(self, overlay: Overlay, arrival: Arrival, candidates: list[str]) -> str | None:
        """The fastest neighbour where it is a source, or any; None while it has not begun."""
        fastest = overlay.synchronization.parents.get(self._agent.identity.worker)
        among = [fastest] if fastest in candidates else candidates
        return next((one for one in among if one in arrival.opened), None)
