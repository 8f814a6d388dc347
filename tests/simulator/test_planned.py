"""What a process remembers of the planner's decisions, whoever asks."""

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from kintsugi.core.cluster import Cluster
from kintsugi.core.job import JobSettings, Snapshot
from kintsugi.core.plan import Policy
from kintsugi.simulator import planned
from kintsugi.simulator.planned import Decided, Memory
from kintsugi.simulator.running import StepPrice
from tests.builders import grid_plan
from tests.simulator.fakes import free_profile

PRICE = StepPrice(compute_seconds=1.0, bubble_seconds=0.0, reduction_seconds=0.0)
DECIDED = Decided(Policy.DYNAMIC_PARALLELISM, grid_plan(4, [2], [8]), PRICE, 1.0)
PROFILE, CLUSTER = free_profile(), Cluster.uniform(4)


def snapshot(num_alive=4, generation=0):
    alive = tuple(CLUSTER.by_id)[:num_alive]
    settings = JobSettings(num_microbatches=8)
    return Snapshot(profile=PROFILE, cluster=CLUSTER, settings=settings, plan=None, alive=alive, generation=generation)


@pytest.fixture
def asked(monkeypatch):
    """All questions that the planner was asked."""
    questions = []

    def answer(question):
        questions.append(question)
        return DECIDED

    monkeypatch.setattr(planned, "_decided", answer)
    return questions


def test_the_same_question_is_asked_once_and_a_free_choice_answers_what_is_pinned_to_it(asked):
    memory = Memory()
    pinned = [replace(snapshot(), settings=replace(snapshot().settings, policy=policy)) for policy in Policy]
    for question in (snapshot(), snapshot(), *pinned):
        assert memory.decided(question) == DECIDED
    assert [question.settings.policy for question in asked] == [None, *(p for p in Policy if p is not DECIDED.policy)]


def test_the_oldest_decisions_are_forgotten(asked, monkeypatch):
    monkeypatch.setattr(planned, "MOST_REMEMBERED", 9)
    memory = Memory()
    for generation in (0, 1, 2, 0):
        memory.decided(snapshot(generation=generation))
    assert [question.generation for question in asked] == [0, 1, 2, 0]
    assert [question.generation for question in memory.known] == [2, 0]
    assert memory.num_workers == 8


def test_what_two_threads_are_told_at_once_is_remembered_once(monkeypatch):
    memory = Memory()

    def answer(question):
        if not memory.known:
            monkeypatch.setattr(planned, "_decided", lambda _: DECIDED)
            memory.decided(question)  # what another thread does meanwhile
        return DECIDED

    monkeypatch.setattr(planned, "_decided", answer)
    assert memory.decided(snapshot()) == DECIDED
    assert memory.num_workers == 4


@pytest.mark.usefixtures("asked")
def test_threads_that_make_each_others_decisions_be_forgotten_have_their_own(monkeypatch):
    monkeypatch.setattr(planned, "MOST_REMEMBERED", 3)
    memory, before = Memory(), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            told = list(pool.map(lambda number: memory.decided(snapshot(1 + number % 4, number)), range(2000)))
    finally:
        sys.setswitchinterval(before)
    assert told == [DECIDED] * 2000
    assert memory.num_workers == sum(len(known.alive) for known in memory.known)
