"""Two services in processes of their own on one PostgreSQL: one log, waiting at either, and one of them killed as it writes."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from api.replay import Replay
from api.storage.store import Store
from kintsugi.client import Client
from kintsugi.core.errors import StaleGenerationError, UnavailableError
from kintsugi.core.job import JobSettings
from kintsugi.core.membership import Event, EventKind
from tests.builders import uniform_profile
from tests.databases import POSTGRESQL
from tests.services import service

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(300),
    pytest.mark.parametrize("database_kind", [POSTGRESQL], indirect=True),
]

QUIET = ("--log-level", "error")
ENOUGH = 10
"""Answers of each service before one of them is killed."""


class Striker:
    """Reports one event after the other to one service, each of the generation that is the latest then."""

    def __init__(self, url, name):
        self._url, self._name = url, name
        self._ended = threading.Event()
        self.enough = threading.Event()
        self.acknowledged = {}

    def run(self):
        with Client(self._url) as client:
            for number in range(10_000):
                if self._ended.is_set():
                    return
                try:
                    self._strike(client, number)
                except UnavailableError:
                    return
                if number >= ENOUGH:
                    self.enough.set()

    def end(self):
        self._ended.set()

    def _strike(self, client, number):
        while not self._ended.is_set():
            event = Event(
                kind=EventKind.STRAGGLER,
                id=f"{self._name}{number}",
                generation=client.plan("job", brief=True).generation,
                worker="w00" if self._name == "a" else "w01",
                speed_ratio=(0.5, 1.0)[number % 2],
            )
            try:
                self.acknowledged[event.id] = client.post_event("job", event, brief=True).generation
            except StaleGenerationError:
                continue
            return


def test_two_services_write_one_log_and_one_goes_on_when_the_other_is_killed(database_url):
    with service(database_url, *QUIET) as one, service(database_url, *QUIET) as other, Client(other.url) as client:
        client.create_job(job="job", profile=uniform_profile(3), workers=4, settings=JobSettings(num_microbatches=6))
        strikers = [Striker(one.url, "a"), Striker(other.url, "b")]
        with ThreadPoolExecutor(3) as threads:
            with Client(one.url) as waiting:
                woken = threads.submit(waiting.plan_after, "job", 0, wait_seconds=60)
                running = [threads.submit(striker.run) for striker in strikers]
                assert woken.result(100).generation > 0
            assert all(striker.enough.wait(100) for striker in strikers)
            one.kill()
            strikers[1].end()
            for future in running:
                future.result(100)
        acknowledged = {**strikers[0].acknowledged, **strikers[1].acknowledged}
        latest = client.plan("job").generation
    generations = sorted(acknowledged.values())
    assert len(generations) == len(set(generations)) >= 2 * ENOUGH
    store = Store(database_url, read_only=True)
    try:
        entries = store.entries("job")
        assert [entry.number for entry in entries] == list(range(1, len(entries) + 1))
        assert [entry.generation for entry in entries] == list(range(1, latest + 1))
        stored = {entry.content.id: entry.generation for entry in entries}
        assert acknowledged.items() <= stored.items()
        assert set(stored) - set(acknowledged) <= {f"a{number}" for number in range(10_000)}  # killed before it could answer
        assert [entry for entry in Replay(store, "job") if entry.differences] == []
    finally:
        store.close()
