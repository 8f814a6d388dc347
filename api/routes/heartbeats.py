"""Heartbeats: signs of life in batches, by host."""

from fastapi import APIRouter, Response

from api.deps import BODY_PROBLEMS, DeskDep, JobPath, reply
from api.http.bodies import HeartbeatsBody, takes, tells
from kintsugi.core.heartbeats import HeartbeatAnswer, Heartbeats

router = APIRouter(prefix="/v1/jobs/{job}/heartbeats", tags=["heartbeats"])


@router.post("", responses=tells(HeartbeatAnswer) | BODY_PROBLEMS, openapi_extra=takes(Heartbeats))
async def post_heartbeats(job: JobPath, body: HeartbeatsBody, desk: DeskDep) -> Response:
    """Tell that workers of one host live; the first heartbeat of a job begins the watch over all its workers.

    A worker that is silent for the job's `heartbeat_timeout_seconds` is logged as failed, and all of a host at once as
    `host_failed`; those that fall silent together get one decision. Heartbeats themselves are kept in memory only. A worker that
    was declared lost is refused with code `stale_incarnation` and the incarnation to begin above.
    """
    return reply(await desk.heartbeats.hear(job, body))
