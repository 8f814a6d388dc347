"""Many runs at once: every combination of varied values, every policy, every seed."""

import importlib
import math
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from multiprocessing import active_children, get_context
from typing import Any

from kintsugi.core.errors import InvalidInputError
from kintsugi.core.garbage import without_collection
from kintsugi.simulator.adviser import Adviser
from kintsugi.simulator.job import incidents_of, job_of
from kintsugi.simulator.outcome import Outcome
from kintsugi.simulator.policies import ALL, require_schedule
from kintsugi.simulator.rows import Value
from kintsugi.simulator.scenario import Scenario, varied
from kintsugi.simulator.simulate import simulate

SEEDS_AT_ONCE = 25
"""A task simulates so many seeds of one policy, so that they share answers."""

TASKS_PER_PROCESS = 4
"""At least, where seeds allow it: so that no process idles for long at the end, and progress shows."""

MOST_RUNS = 1_000_000

MOST_ADVISERS = 4
"""A process remembers the answers of so many policies and scenarios; tasks of one of them follow each other."""


@dataclass(frozen=True, slots=True)
class Result:
    """One run, and the values it was varied with."""

    values: tuple[tuple[str, Value], ...]
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Task:
    """Some seeds of one policy in one scenario."""

    scenario: Scenario
    values: tuple[tuple[str, Value], ...]
    policy: str
    seeds: tuple[int, ...]

    def run(self) -> list[Result]:
        """Simulate; what happens over time is kept for the first seed of all only, to be drawn."""
        return list(self.each())

    def each(self) -> Iterator[Result]:
        """Simulate one seed after the other."""
        for seed in self.seeds:
            yield Result(self.values, run_one(self.scenario, self.policy, seed))


def run_one(scenario: Scenario, policy: str, seed: int) -> Outcome:
    """One run of a scenario under a policy, deterministic by seed.

    Raises:
        InvalidInputError: profile or trace cannot be read, or do not go together.
    """
    return run_with(_kept_adviser(scenario, policy), scenario, seed)


def run_with(adviser: Adviser, scenario: Scenario, seed: int, watch: Callable[[], None] = lambda: None) -> Outcome:
    """One run under the policy of an adviser for this scenario; `watch` may raise to give it up."""
    with without_collection():
        outcome = simulate(
            adviser,
            scenario.cluster,
            incidents_of(scenario, seed),
            duration_seconds=scenario.duration_seconds,
            seed=seed,
            is_traced=scenario.trace is not None,
            watch=watch,
        )
    return outcome if seed == 0 else replace(outcome, spans=(), trained=(), live=())


def adviser_of(scenario: Scenario, policy: str) -> Adviser:
    """An adviser that was asked nothing yet."""
    job = job_of(scenario, incidents_of(scenario, 0))
    return Adviser(ALL[policy](job), job)


_kept_adviser = lru_cache(MOST_ADVISERS)(adviser_of)


def tasks_of(
    scenario: Scenario,
    variations: Mapping[str, Sequence[Value]],
    policies: Sequence[str],
    seeds: Sequence[int],
    *,
    num_processes: int = 1,
) -> tuple[Task, ...]:
    """All runs, in tasks for so many processes; tasks of one policy are neighbours.

    Where nothing is left to chance all runs of a policy are one and the same: it is simulated with the first seed alone.

    Raises:
        InvalidInputError: a scenario does not take a value, a policy not its schedule, its trace cannot be read, or there are far
            too many runs.
    """
    count = math.prod(map(len, variations.values())) * len(policies) * len(seeds)
    if count > MOST_RUNS:
        cause = "vary" if variations else "seeds"
        value = {name: len(values) for name, values in variations.items()} or len(seeds)
        raise InvalidInputError(f"comes to {count:,} runs; {MOST_RUNS:,} are the most at once", field=cause, value=value)
    combinations = [tuple(zip(variations, values, strict=True)) for values in product(*variations.values())]
    cases = [(varied(scenario, dict(values)), values) for values in combinations]
    for case, _ in cases:
        require_schedule(policies, case.settings.schedule)
    size = _seeds_at_once(len(seeds), len(combinations) * len(policies), num_processes)
    chunks = [tuple(seeds[start : start + size]) for start in range(0, len(seeds), size)]
    kinds = {(case.trace, case.faults): case for case, _ in cases}
    chunks_of = {kind: chunks if case.is_by_chance() else [tuple(seeds[:1])] for kind, case in kinds.items()}
    return tuple(
        Task(case, values, policy, chunk)
        for case, values in cases
        for policy in policies
        for chunk in chunks_of[case.trace, case.faults]
    )


def _seeds_at_once(num_seeds: int, num_cases: int, num_processes: int) -> int:
    """As many as may be, unless there are fewer cases (values and policy) than processes: then few enough for all to work."""
    if num_cases >= num_processes:
        return SEEDS_AT_ONCE
    parts = TASKS_PER_PROCESS * num_processes // max(num_cases, 1)
    return min(SEEDS_AT_ONCE, max(1, -(-num_seeds // parts)))


def run_all(tasks: Sequence[Task], executor: Executor | None) -> Iterator[list[Result]]:
    """Results of all tasks as they come, in this process or through any executor."""
    if executor is None:
        for task in tasks:
            for result in task.each():
                yield [result]
        return
    futures: list[Future[list[Result]]] = [executor.submit(Task.run, task) for task in tasks]
    try:
        for future in as_completed(futures):
            yield future.result()
    except (Exception, GeneratorExit):  # not Ctrl-C, which ends the pool: Python 3.11 fails to end one with cancelled work
        for future in futures:
            future.cancel()
        raise


def in_order(results: Sequence[Result], tasks: Sequence[Task]) -> tuple[Result, ...]:
    """Results in the order of their tasks, whoever was first."""
    place = {(task.values, task.policy): number for number, task in reversed(list(enumerate(tasks)))}
    return tuple(sorted(results, key=lambda r: (place[r.values, r.outcome.policy], r.outcome.seed)))


@contextmanager
def executor_for(num_processes: int | None, dask: str | None) -> Iterator[Executor | None]:
    """Where tasks run: a Dask cluster by its address, processes of this machine (all cores by default), or this process.

    Raises:
        InvalidInputError: Dask is not installed or does not answer.
    """
    if dask is not None:
        with _dask_executor(dask) as executor:
            yield executor
        return
    count = num_processes or os.cpu_count() or 1
    if count == 1:
        yield None
        return
    with ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=_leave_quietly) as pool:
        try:
            yield pool
        except KeyboardInterrupt:
            for process in active_children():
                process.terminate()
            raise


def _leave_quietly() -> None:
    """Have Ctrl-C end a process of the pool at once and without a word."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def _dask_executor(address: str) -> Iterator[Executor]:
    try:
        distributed: Any = importlib.import_module("distributed")
    except ModuleNotFoundError as error:
        raise InvalidInputError("needs Dask: pip install 'kintsugi[dask]'", field="dask", value=address) from error
    try:
        client = distributed.Client(address, timeout="10s")
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"no Dask scheduler answers: {error}", field="dask", value=address) from error
    with client:
        yield client.get_executor(pure=False)
