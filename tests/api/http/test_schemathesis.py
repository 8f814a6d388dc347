"""Requests that Schemathesis makes up from the OpenAPI document, good and bad ones: no server error, no answer beyond the document.

`scripts/fuzz` does the same to a running service with a thousand examples of every operation and sequences of operations.
"""

import socket
import threading
from contextlib import contextmanager

import httpx2
import pytest
import schemathesis
import uvicorn
from hypothesis import HealthCheck, Phase
from hypothesis import settings as hypothesis_settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks

from api.app import create_app
from api.settings import Settings
from tests.api.http.test_openapi import SNAPSHOT
from tests.api.story import PARAMETERS, new_job

EXAMPLES = 2
"""Of every operation; the document's own come on top."""
HEAVY = r"stream|^/v1/(jobs|estimates|whatif|simulations)$"
"""Whose bodies hold whole profiles (to make one up takes seconds), and what never ends: `scripts/fuzz` asks them."""
CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.unsupported_method,
]
"""What is decided by more than the document (which job there is, which generation it is in) is no matter of these."""


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """Of a running service that has the job of the examples."""
    url = f"sqlite:///{tmp_path_factory.mktemp('fuzz')}/kintsugi.sqlite3"
    bounds = {"max_wait_seconds": 0.01, "max_simulation_seconds": 1.0}
    settings = Settings(database_url=url, plans_ahead=False, require_tokens="never", **bounds)  # it is asked to issue tokens
    with served(create_app(settings)) as address:
        job = {**new_job(), "id": PARAMETERS["job"]}
        assert httpx2.post(f"{address}/v1/jobs", json=job, timeout=240.0).status_code == 201
        yield address


@contextmanager
def served(app):
    """The address at which a thread of this process serves `app`."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="on"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(120.0)


schema = schemathesis.openapi.from_path(SNAPSHOT)
schema.config.generation.update(modes=list(schemathesis.GenerationMode))
schema.config.request_timeout = 60.0


@schema.exclude(path_regex=HEAVY).parametrize()
@hypothesis_settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_no_server_error_and_no_answer_beyond_the_document(case, address):
    case.call_and_validate(base_url=address, checks=CHECKS)
