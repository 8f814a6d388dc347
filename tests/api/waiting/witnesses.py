"""Processes of one clock that listen to one job, without a database between them."""

from collections.abc import Mapping

from kintsugi.core.errors import UnavailableError


class Between:
    """What processes of one clock tell each other, in memory; each has one of its own."""

    def __init__(self, everybody: list["Between"]) -> None:
        self.everybody, self.is_away = everybody, False
        self.own: Mapping[str, Mapping[str, float]] = {}
        everybody.append(self)

    def exchange(
        self, heard: Mapping[str, Mapping[str, float]], *, period_seconds: float, since: float
    ) -> dict[str, dict[str, float]]:
        if self.is_away:
            raise UnavailableError("away")
        self.own = heard
        found: dict[str, dict[str, float]] = {}
        for one in self.everybody:
            for job, workers in one.own.items() if one is not self else ():
                found.setdefault(job, {}).update(workers)
        return found
