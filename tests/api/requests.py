"""Bodies of requests, as JSON data."""

from typing import Any

from starlette.testclient import TestClient

from kintsugi.core import codec
from tests.builders import uniform_profile
from tests.patience import eventually

JOB = "/v1/jobs/llama"
EVENTS = f"{JOB}/events"
REPORTS = f"{JOB}/reports"


def new_job(**changes: Any) -> dict[str, Any]:
    """A job of 4 layers and 8 micro-batches on 6 workers, two to a host."""
    return {
        "id": "llama",
        "profile": codec.encode(uniform_profile(4)),
        "workers": 6,
        "workers_per_host": 2,
        "settings": {"num_microbatches": 8},
        **changes,
    }


def event(id: str, generation: int, worker: str | None = None, kind: str = "worker_failed", **changes: Any) -> dict[str, Any]:  # noqa: A002
    """An event, by default the failure of a worker."""
    subject = {} if worker is None else {"worker": worker}
    return {"id": id, "kind": kind, "generation": generation, **subject, **changes}


def report(generation: int, status: str = "applied", **changes: Any) -> dict[str, Any]:
    """A report, by default that a plan was applied."""
    return {"generation": generation, "status": status, **changes}


def workers_of(decision: dict[str, Any]) -> set[str]:
    """Workers that hold a stage of a decision's plan."""
    stages = [stage for pipeline in decision["plan"]["pipelines"] for stage in pipeline["stages"]]
    return {stage["worker"] for stage in stages if stage["worker"] is not None}


def assert_ready(client: TestClient) -> None:
    """The service gets ready; where the disk is slow, at a later look, as what was held up is written first."""
    answer = eventually(lambda: client.get("/readyz"), lambda answer: answer.status_code == 200)
    assert answer.status_code == 200, answer.text
