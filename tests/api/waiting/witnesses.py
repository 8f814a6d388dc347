"""Processes of one clock that listen to one job, without a database between them."""

from collections.abc import Mapping
from typing import Any

from api.waiting.patrol import Patrol
from kintsugi.core.errors import UnavailableError


class Between:
    """What processes of one clock tell each other, in memory; each has one of its own."""

    def __init__(self, everybody: list["Between"]) -> None:
        self.everybody, self.is_away = everybody, False
        self.own: Mapping[str, Mapping[str, float]] = {}
        everybody.append(self)

    def give(self, heard: Mapping[str, Mapping[str, float]]) -> None:
        self.own = heard

    def heard(self, job: str) -> dict[str, float]:
        if self.is_away:
            raise UnavailableError("away")
        return {worker: at for one in self.everybody if one is not self for worker, at in one.own.get(job, {}).items()}


async def told(patrol: Patrol[Any]) -> None:
    """It tells the others now."""
    assert patrol._witness is not None
    await patrol._give(patrol._witness, {job: dict(one.heard_here) for job, one in patrol._heard.items()})
