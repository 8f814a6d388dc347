"""A token that another service issued is accepted by the one that goes on in its place."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from api.access.tokens import NewToken, Scope
from api.access.vault import Vault
from api.app import create_app
from api.settings import Settings
from api.storage.store import Store
from kintsugi.core.errors import InvalidInputError

WORKERS = NewToken(name="workers", scope=Scope.REPORT, job="llama")


@contextmanager
def vault(database: Path) -> Iterator[Vault]:
    store = Store(f"sqlite:///{database}")
    store.open()
    try:
        yield Vault(store.database)
    finally:
        store.close()


def test_the_workers_token_is_good_for_their_job_alone_and_is_needed(tmp_path):
    with vault(tmp_path / "first") as first:
        secret = first.issue(WORKERS).secret
    with vault(tmp_path / "second") as second:
        for _ in range(2):
            second.adopt(secret, WORKERS)
        found = second.find(secret)
        assert found is not None
        assert (found.scope, found.job) == (WORKERS.scope, WORKERS.job)
        with pytest.raises(InvalidInputError, match="is no token"):
            second.adopt("guessed", WORKERS)
    settings = Settings(database_url=f"sqlite:///{tmp_path / 'third'}", overlay_log_job="llama", overlay_log_token=secret)
    with TestClient(create_app(settings), base_url="http://localhost") as client:
        assert client.get("/v1/jobs/llama/overlay").status_code == 401
        assert client.get("/v1/jobs/llama/overlay", headers={"Authorization": f"Bearer {secret}"}).status_code == 404


def test_of_two_processes_that_begin_with_it_at_the_same_time_both_begin(tmp_path, monkeypatch):
    with vault(tmp_path / "first") as issuing:
        secret = issuing.issue(WORKERS).secret
    with vault(tmp_path / "both") as one, vault(tmp_path / "both") as other:
        put = one._put

        def put_after_the_other(*token):
            other.adopt(secret, WORKERS)
            return put(*token)

        monkeypatch.setattr(one, "_put", put_after_the_other)
        one.adopt(secret, WORKERS)
        assert one.find(secret) == other.find(secret) is not None
