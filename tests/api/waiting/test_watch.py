"""Waiting without threads: woken by plans, by other processes' plans, by the end; turns are taken one by one."""

import threading

import anyio
import pytest

from api.waiting.watch import Turns, Watch
from kintsugi.core.errors import UnavailableError

pytestmark = pytest.mark.anyio

LONG = 60.0


def nothing_new(jobs):
    return {}


async def test_only_a_newer_generation_wakes():
    watch = Watch(nothing_new)
    woken = []

    async def wait(above):
        assert await watch.wait("job", above, LONG) == (3 if above == 2 else 2)
        woken.append(above)

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            for above in (0, 1, 2):
                tasks.start_soon(wait, above)
            await anyio.wait_all_tasks_blocked()
            watch.tell("other", 9)
            watch.tell("job", 0)
            await anyio.wait_all_tasks_blocked()
            assert woken == []
            watch.tell("job", 2)
            await anyio.wait_all_tasks_blocked()
            assert sorted(woken) == [0, 1]
            watch.tell("job", 3)
    assert sorted(woken) == [0, 1, 2]


async def test_a_generation_that_is_not_to_go_on_with_any_more_wakes_nobody_who_comes_later():
    watch = Watch(nothing_new)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch.wait, "job", 2, LONG)
            await anyio.wait_all_tasks_blocked()
            watch.tell("job", 2)
            watch.tell("job", 1)
            assert await watch.wait("job", 1, 0.01) == -1
            watch.tell("job", 3)


async def test_what_was_read_before_a_set_back_is_not_told_after_it(monkeypatch):
    monkeypatch.setattr("api.waiting.watch.POLL_SECONDS", 0.0)
    is_read, is_back = threading.Event(), threading.Event()
    reads = []

    def latest(jobs):
        reads.append(list(jobs))
        is_read.set()
        assert is_back.wait(20.0)
        return {"job": 7 if len(reads) == 1 else 3}

    watch, told = Watch(latest), []

    async def wait():
        told.append(await watch.wait("job", 2, LONG))

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch.run)
            tasks.start_soon(watch.wait, "job", 6, LONG)
            await anyio.to_thread.run_sync(is_read.wait)
            watch.forget()
            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            is_back.set()
            while not told:
                await anyio.sleep(0.0)
            watch.close()
    assert told == [3]


async def test_nobody_waits_beyond_the_time():
    watch = Watch(nothing_new)
    with anyio.fail_after(20):
        assert await watch.wait("job", 0, 0.01) == -1


async def test_closing_wakes_everybody_and_ends_the_looking():
    watch = Watch(nothing_new)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch.run)
            tasks.start_soon(watch.wait, "job", 0, LONG)
            await anyio.lowlevel.checkpoint()
            watch.close()
        assert await watch.wait("job", 0, LONG) == -1
    assert watch.is_closed


async def test_plans_of_other_processes_are_found_even_after_the_database_was_away():
    answers = iter([UnavailableError("away"), {"job": 0}, {"job": 1}])

    def latest(jobs):
        assert list(jobs) == ["job"]
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    watch = Watch(latest)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch.run)
            await watch.wait("job", 0, LONG)
            watch.close()
    assert list(answers) == []


async def test_turns_on_one_job_are_taken_one_by_one():
    turns, inside, most = Turns(), {"a": 0, "b": 0}, {"a": 0, "b": 0}

    async def take(job):
        async with turns.of(job):
            inside[job] += 1
            most[job] = max(most[job], inside[job])
            await anyio.lowlevel.checkpoint()
            inside[job] -= 1

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(take, "ab"[number % 2])
    assert most == {"a": 1, "b": 1}


async def test_a_turn_that_fails_is_given_on():
    turns = Turns()
    with anyio.fail_after(20):
        for _ in range(2):
            with pytest.raises(ValueError, match="no"):
                async with turns.of("job"):
                    raise ValueError("no")
