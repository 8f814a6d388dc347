"""Rounds: none while nobody can fall silent, and at once where somebody newly can."""

import math

import anyio
import pytest

from api.waiting.patrol import Patrol


class Sentry:
    def __init__(self, timeout_seconds: float) -> None:
        self.timeout_seconds = timeout_seconds
        self.forgiven_seconds = 0.0

    def forgive(self, seconds: float, now: float) -> None:
        self.forgiven_seconds += seconds


class Rounds(Patrol[Sentry]):
    """Ends with the round in which it has looked at so many."""

    def __init__(self, num_looks: int, clock=lambda: 0.0) -> None:
        super().__init__(clock)
        self._num_looks = num_looks
        self.looked_at: list[str] = []

    def listen(self, job: str, timeout_seconds: float) -> Sentry:
        return self._begin(job, Sentry(timeout_seconds))

    def _timeout_seconds(self) -> float | None:
        return min((one.timeout_seconds for one in self._heard.values() if math.isfinite(one.timeout_seconds)), default=None)

    def _is_silent(self, job: str) -> bool:
        return True

    def _numbers(self, jobs):
        return {}

    async def _look(self, job):
        return self._heard[job]

    async def _tell(self, job: str) -> None:
        self.looked_at.append(job)
        if len(self.looked_at) >= self._num_looks:
            self.close()


@pytest.mark.anyio
async def test_who_begins_to_be_listened_to_is_looked_at():
    rounds = Rounds(num_looks=2)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(rounds.run)
            await anyio.wait_all_tasks_blocked()
            rounds.listen("untimed", math.inf)
            await anyio.wait_all_tasks_blocked()
            assert rounds.looked_at == ["untimed"]
            rounds.listen("timed", 1e9)
    assert rounds.looked_at == ["untimed", "untimed", "timed"]


@pytest.mark.anyio
async def test_nobody_is_forgiven_while_rounds_are_in_time():
    readings = iter([0.0, 0.02, 0.02, 9.0])
    rounds = Rounds(num_looks=2, clock=lambda: next(readings, 9.0))
    sentry = rounds.listen("job", 0.1)
    with anyio.fail_after(20):
        await rounds.run()
    assert sentry.forgiven_seconds == pytest.approx(9.0 - 0.02 - 0.02)
