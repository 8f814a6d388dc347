"""Who waits has a place for as long as it is there."""

import anyio
import pytest
from starlette.testclient import TestClient

from api.app import create_app
from api.settings import Settings
from tests.api.requests import new_job

WAITS = ["plan?after_generation=0", "events?after=0", "reports?after=0", "overlay?after_generation=1", "overlay/log?after=1"]
JOINED = {"kind": "worker_joined", "id": "a", "worker": "w00", "address": "h:1", "state_bytes": 1, "shard_bytes": 1}


@pytest.fixture
def served(tmp_path):
    with TestClient(create_app(Settings(database_url=f"sqlite:///{tmp_path}/kintsugi.sqlite3"))) as served:
        assert served.post("/v1/jobs", json=new_job()).status_code == 201
        assert served.post("/v1/jobs/llama/overlay/events", json=JOINED).status_code == 200
        yield served


@pytest.mark.parametrize("path", WAITS)
def test_a_client_that_leaves_gives_its_place_back(served, path):
    name, _, query = path.partition("?")
    scope = {
        "type": "http",
        "method": "GET",
        "path": f"/v1/jobs/llama/{name}",
        "query_string": f"{query}&wait_seconds=50".encode(),
        "headers": [],
        "client": ("127.0.0.1", 1),
        "state": {},
    }

    async def wait_and_leave() -> None:
        places, left = served.app.state.desk.access.places, anyio.Event()
        messages = [{"type": "http.request", "body": b"", "more_body": False}]

        async def receive() -> dict:
            if messages:
                return messages.pop()
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(_: dict) -> None:
            """Nobody is there."""

        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(served.app, scope, receive, send)
                while not places._taken:
                    await anyio.sleep(0)
                left.set()
        assert not places._taken

    served.portal.call(wait_and_leave)
