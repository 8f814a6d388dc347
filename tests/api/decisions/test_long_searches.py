"""Jobs whose searches take long hold up no others."""

import threading
from concurrent.futures import ThreadPoolExecutor

from starlette.testclient import TestClient

from api.app import create_app
from api.decisions import planning
from api.settings import Settings
from tests.api.requests import event, new_job

PATIENCE_SECONDS = 120.0


def test_writes_of_other_jobs_do_not_wait_for_a_thread_while_one_is_searched_for(monkeypatch, database_url):
    app = create_app(Settings(database_url=database_url, plans_ahead=False, planning_processes=0, max_planning_threads=1))
    begun, goes_on, decided = threading.Event(), threading.Event(), planning.decided

    def held(snapshot):
        if snapshot.plan is not None and planning.is_long(snapshot.profile.num_layers, len(snapshot.alive)):
            begun.set()
            assert goes_on.wait(PATIENCE_SECONDS)
        return decided(snapshot)

    def lose(job):
        return client.post(f"/v1/jobs/{job}/events", json=event("a", 0, "w00")).json()["generation"]

    with TestClient(app) as client, ThreadPoolExecutor(2) as threads:
        for name, workers in (("long", 6), ("short", 4)):
            client.post("/v1/jobs", json=new_job(id=name, workers=workers))
        monkeypatch.setattr(planning, "LONG", 4 * 5)
        monkeypatch.setattr(planning, "decided", held)
        waiting = threads.submit(lose, "long")
        assert begun.wait(PATIENCE_SECONDS)
        try:
            assert threads.submit(lose, "short").result(PATIENCE_SECONDS) == 1
        finally:
            goes_on.set()
        assert waiting.result(PATIENCE_SECONDS) == 1
