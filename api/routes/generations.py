"""Generations that the workers decide by themselves: the lease on each, and the plans that were made ahead for them."""

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Response

from api.deps import BODY_PROBLEMS, LARGEST_GENERATION, READ_PROBLEMS, Cursor, DeskDep, JobPath, Limit, reply
from api.http.bodies import LeaseClaimBody, takes, tells
from api.leases import Leases
from api.plans_ahead import contingency_page
from kintsugi.core.leases import ContingencyPage, LeaseClaim, LeaseRecord

router = APIRouter(prefix="/v1/jobs/{job}", tags=["generations"])

OwnGenerationPath = Annotated[int, Path(ge=0, le=LARGEST_GENERATION, description="Generation of the workers' membership.")]
Latest = Annotated[bool, Query(description="Tell the latest that is held for this generation or one after it.")]


def _leases(desk: DeskDep) -> Leases:
    return Leases(desk.service.store)


LeasesDep = Annotated[Leases, Depends(_leases)]


@router.post(
    "/generations/{generation}/lease",
    status_code=HTTPStatus.CREATED,
    responses=tells(LeaseRecord) | tells(LeaseRecord, HTTPStatus.CREATED) | BODY_PROBLEMS,
    openapi_extra=takes(LeaseClaim),
)
async def claim_lease(
    job: JobPath, generation: OwnGenerationPath, body: LeaseClaimBody, desk: DeskDep, leases: LeasesDep
) -> Response:
    """Hold an agreement of the job's workers as the one on a generation, or tell of the service what they decided.

    The first that asks gets it, durable (201); the same again changes nothing (200), and any other is refused (409): read what
    is held, and go on with that.
    """
    record, is_new = await desk.read(leases.claim, job, generation, body)
    return reply(record, HTTPStatus.CREATED if is_new else HTTPStatus.OK)


@router.get("/generations/{generation}/lease", responses=tells(LeaseRecord) | READ_PROBLEMS)
async def get_lease(
    job: JobPath, generation: OwnGenerationPath, desk: DeskDep, leases: LeasesDep, *, latest: Latest = False
) -> Response:
    """The agreement that is held for a generation."""
    return reply(await desk.read(leases.latest if latest else leases.held, job, generation))


@router.get("/contingencies", responses=tells(ContingencyPage) | READ_PROBLEMS)
async def list_contingencies(job: JobPath, desk: DeskDep, *, cursor: Cursor = None, limit: Limit = 100) -> Response:
    """Decisions made ahead of what may be lost next, for workers that go on without asking, in the order of their fingerprints."""
    page = await desk.read(contingency_page, desk.service, job, cursor, limit)
    return Response(page, media_type="application/json")
