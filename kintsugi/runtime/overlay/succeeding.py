"""A worker's part in there being a scheduler: it votes, and stands by for the scheduler where it is asked to."""

import os
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from urllib.parse import quote

from kintsugi.runtime.disk import answer_of, make_private
from kintsugi.runtime.overlay.agent import Agent
from kintsugi.runtime.overlay.control import Control
from kintsugi.runtime.overlay.election import BallotBox, Electorate
from kintsugi.runtime.overlay.greeting import Identity
from kintsugi.runtime.overlay.heard import HeardScheduler
from kintsugi.runtime.overlay.links import Links
from kintsugi.runtime.overlay.log_copy import LOG_FILE, LogCopy
from kintsugi.runtime.overlay.scheduler import HttpScheduler
from kintsugi.runtime.overlay.serving import ServiceProcess
from kintsugi.runtime.overlay.standby import Standby, StandbyOptions

_FOLDER = "standby.folder"
LEASE_SECONDS = 10.0
"""Silence after which a voter that does not stand by itself lets go of the scheduler, twice over."""


def ballots_folder() -> Path:
    """Where votes of this user's workers lie that have no folder of their own.

    Raises:
        InvalidInputError: somebody else made it.
    """
    folder = Path(tempfile.gettempdir()) / f"kintsugi-ballots-{os.getuid()}"
    make_private(folder, "TMPDIR")
    return folder


def ballot_box(own: Identity, standby: StandbyOptions | None) -> BallotBox:
    """A worker's last vote; it lies in a file, so that the worker votes once a term.

    Raises:
        InvalidInputError: the file is no vote, or its folder, among temporary files, somebody else's.
        UnavailableError: its disk hangs.
    """
    folder, field = (ballots_folder(), "TMPDIR") if standby is None else (Path(standby.folder), _FOLDER)
    path = folder / f"{quote(f'{own.job}-{own.worker}', safe='')}.ballot.json"
    return answer_of(folder, partial(BallotBox, path), field=field)


class Succession:
    """Votes, and the standby's thread; begun and closed with the coordinator."""

    def __init__(
        self,
        agent: Agent,
        links: Links,
        control: Control,
        scheduler: HeardScheduler,
        *,
        box: BallotBox,
        standby: StandbyOptions | None,
    ) -> None:
        """Take part in votes from now on; `box` holds the last one."""
        own = agent.identity
        lease_seconds = LEASE_SECONDS if standby is None else standby.lease_seconds
        electorate = Electorate(
            own.worker,
            links,
            box,
            lambda: agent.overlay,
            is_silent=lambda: scheduler.silent_seconds > lease_seconds / 2,
            on_vote=scheduler.allow_time,
            on_scheduler=lambda url, _: self._move(url),
        )
        electorate.attach(control)
        self._electorate, self._agent, self._scheduler = electorate, agent, scheduler
        self._standby: Standby | None = None
        self._source: HttpScheduler | None = None

    def start(self, urls: Sequence[str], token: str | None, standby: StandbyOptions) -> None:
        """Stand by for the scheduler that answers at `urls`."""
        own, agent, scheduler = self._agent.identity, self._agent, self._scheduler
        source = self._source = HttpScheduler(urls, own.job, token=token)
        agent.on_overlay(lambda overlay: source.moved(overlay.scheduler) if overlay.scheduler else None)
        self._standby = Standby(
            own,
            self._electorate,
            source=source,
            copy=answer_of(Path(standby.folder), partial(LogCopy, Path(standby.folder) / LOG_FILE), field=_FOLDER),
            serve=lambda path: ServiceProcess(path, own.job, host=standby.host, port=standby.port, token=token),
            options=standby,
            silent_seconds=lambda: scheduler.silent_seconds,
            known_term=lambda: agent.overlay.term,
            rank=lambda: sorted(agent.effective.order).index(own.worker) if own.worker in agent.effective.order else 0,
        )
        self._standby.start()

    @property
    def is_scheduler(self) -> bool:
        """Whether this worker went on in the scheduler's place."""
        return self._standby is not None and self._standby.is_scheduler

    def close(self) -> None:
        """Stand by no more; a service that this worker runs ends with it."""
        if self._standby is not None:
            self._standby.close()
        if self._source is not None:
            self._source.close()

    def _move(self, url: str) -> None:
        self._scheduler.moved(url)
        if self._source is not None:
            self._source.moved(url)
