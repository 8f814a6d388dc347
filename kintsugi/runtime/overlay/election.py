"""Votes among the workers, over the overlay's links alone: what one of them asks is passed on to all, and the answers come back."""

import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from kintsugi.core import codec
from kintsugi.core.errors import InvalidInputError, KintsugiError, cause_of
from kintsugi.core.logs import get_logger
from kintsugi.core.overlay import Overlay
from kintsugi.runtime.clerk import Clerk
from kintsugi.runtime.disk import replace_whole
from kintsugi.runtime.overlay.control import Control
from kintsugi.runtime.overlay.messages import Message
from planner.overlay.succession import Ballot, granted, is_elected, is_newer, next_term

CANDIDACY, VOTE, SCHEDULER = "candidacy", "vote", "scheduler"
KINDS = (CANDIDACY, VOTE, SCHEDULER)
_MOST_REMEMBERED = 256
_WRITE_SECONDS = 2.0
"""For a vote to reach the disk: meanwhile nothing is read of the link that asked for it."""


class Neighborhood(Protocol):
    """The links of a worker, as far as votes need them."""

    @property
    def up(self) -> tuple[str, ...]:
        """Neighbours that can be told something."""

    def tell(self, worker: str, kind: str, fields: Mapping[str, Any]) -> bool:
        """Send something short; whether there was a link for it."""


class BallotBox:
    """A worker's last vote, on the disk before it is told."""

    def __init__(self, path: Path) -> None:
        """Nothing is written before the first vote.

        Raises:
            InvalidInputError: what lies there is no ballot, or its disk does not give it.
        """
        self._path = path
        self.ballot = _last_vote(path)
        self._disk = Clerk("ballot")

    def put(self, ballot: Ballot) -> None:
        """Vote; it is durable once this returns.

        Raises:
            OSError: the disk is full or broken; the earlier vote holds. Or it hangs: then this one holds once it is there, and
                until then there is no other.
        """
        self._disk.asked_once(partial(self._write, ballot), _WRITE_SECONDS)

    def _write(self, ballot: Ballot) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        replace_whole(self._path, codec.dumps(ballot))
        self.ballot = ballot


def _last_vote(path: Path) -> Ballot:
    try:
        return codec.load(Ballot, path) if path.exists() else Ballot()
    except (KintsugiError, OSError) as error:
        message = f"{path} is no vote ({cause_of(error)}); remove it while no scheduler is chosen: its worker might vote twice"
        raise InvalidInputError(message, field="ballot", value=str(path)) from error


class Electorate:
    """One worker's part in the choice of a scheduler: it votes, passes on what others ask and answer, and may ask itself."""

    def __init__(
        self,
        worker: str,
        links: Neighborhood,
        box: BallotBox,
        known: Callable[[], Overlay],
        *,
        is_silent: Callable[[], bool],
        on_vote: Callable[[], None],
        on_scheduler: Callable[[str, int], None],
    ) -> None:
        """Begin to take part.

        Args:
            worker: whose part.
            links: to its neighbours.
            box: its last vote.
            known: the newest overlay that it has seen.
            is_silent: whether it hears nothing of the scheduler.
            on_vote: called once it has voted: whoever may win needs time to begin, and nobody else stands meanwhile.
            on_scheduler: called with the address and term of a scheduler that was chosen.
        """
        self._worker, self._links, self._box = worker, links, box
        self._known, self._is_silent = known, is_silent
        self._on_vote, self._on_scheduler = on_vote, on_scheduler
        self._from: dict[str, str] = {}
        """Whom a question came from first, by its id: the answers go back there. Its own lead to itself."""
        self._votes: dict[str, set[str]] = {}
        self._newest: dict[str, Overlay] = {}
        self._changed = threading.Condition()

    def attach(self, control: Control) -> None:
        """Hear what neighbours say."""
        for kind in KINDS:
            control.on(kind, self.hear)

    def hear(self, neighbor: str, message: Message) -> None:
        """Take in what a neighbour says or passes on."""
        fields = dict(message.fields)
        if message.kind == VOTE:
            self._count(fields)
        elif self._is_new(str(fields["id"]), neighbor):
            self._pass_on(message.kind, fields, neighbor)
            if message.kind == CANDIDACY:
                self._answer(neighbor, fields)
            elif int(fields["term"]) >= self._known().term:
                self._on_scheduler(str(fields["url"]), int(fields["term"]))

    def stand(self, timeout_seconds: float) -> tuple[int, Overlay] | None:
        """Ask for the votes: the term that was won, and the newest overlay that a voter knows; None where no majority answered."""
        known, question = self._known(), uuid4().hex
        term = next_term(self._box.ballot, known.term)
        with self._changed:
            ballot = granted(self._box.ballot, known.term, self._worker, term, is_silent=self._is_silent())
            if ballot is None or not self._has_voted(ballot):
                return None
            self._remember(question, self._worker)
            self._votes[question], self._newest[question] = {self._worker}, known
        told = {"id": question, "term": term, "candidate": self._worker, "known": [known.term, known.generation]}
        self._pass_on(CANDIDACY, told, "")
        with self._changed:
            won = self._changed.wait_for(lambda: is_elected(self._newest[question], self._votes[question]), timeout_seconds)
            del self._votes[question]
            newest = self._newest.pop(question)
        if not won:
            return None
        self._on_vote()
        return term, newest

    def announce(self, url: str, term: int) -> None:
        """Tell everybody where the scheduler answers now."""
        fields = {"id": uuid4().hex, "url": url, "term": term}
        self._is_new(str(fields["id"]), self._worker)
        self._pass_on(SCHEDULER, fields, "")
        self._on_scheduler(url, term)

    def _answer(self, neighbor: str, fields: Mapping[str, Any]) -> None:
        known, term, candidate = self._known(), int(fields["term"]), str(fields["candidate"])
        with self._changed:
            ballot = granted(self._box.ballot, known.term, candidate, term, is_silent=self._is_silent())
            if ballot is None or not self._has_voted(ballot):
                return
        self._on_vote()
        vote: dict[str, Any] = {"id": fields["id"], "voter": self._worker}
        if (known.term, known.generation) > tuple(fields["known"]):
            vote["overlay"] = codec.encode(known)
        self._links.tell(neighbor, VOTE, vote)

    def _has_voted(self, ballot: Ballot) -> bool:
        """Whether a vote is durable now; one that a full, broken or hanging disk does not take is none, and nothing else."""
        try:
            if ballot != self._box.ballot:
                self._box.put(ballot)
        except OSError as error:
            log = get_logger("kintsugi.overlay")
            log.warning("cannot vote for a scheduler: the ballot cannot be written", worker=self._worker, error=str(error))
            return False
        return True

    def _count(self, fields: Mapping[str, Any]) -> None:
        question = str(fields["id"])
        back = self._from.get(question)
        if back is not None and back != self._worker:
            self._links.tell(back, VOTE, fields)
            return
        with self._changed:
            if question not in self._votes:
                return
            if "overlay" in fields:
                told = codec.decode(Overlay, fields["overlay"])
                if is_newer(told, self._newest[question]):
                    self._newest[question] = told
            self._votes[question].add(str(fields["voter"]))
            self._changed.notify_all()

    def _pass_on(self, kind: str, fields: Mapping[str, Any], source: str) -> None:
        for neighbor in self._links.up:
            if neighbor != source:
                self._links.tell(neighbor, kind, fields)

    def _is_new(self, question: str, neighbor: str) -> bool:
        with self._changed:
            if question in self._from:
                return False
            self._remember(question, neighbor)
            return True

    def _remember(self, question: str, neighbor: str) -> None:
        self._from[question] = neighbor
        while len(self._from) > _MOST_REMEMBERED:
            del self._from[next(iter(self._from))]
