"""Plans: the latest, waited for by generation, and any one that was decided."""

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from api.deps import (
    LARGEST_GENERATION,
    READ_PROBLEMS,
    Desk,
    DeskDep,
    DetailQuery,
    GenerationPath,
    JobPath,
    WaitSeconds,
    answer,
    etag,
)
from api.http.bodies import tells
from api.records import StandingDecision
from api.storage.wording import Detail
from api.waiting.presence import while_there
from kintsugi.core.messages import Answer

router = APIRouter(prefix="/v1/jobs/{job}", tags=["plans"])

AfterGeneration = Annotated[
    int | None, Query(ge=0, le=LARGEST_GENERATION, description="Answer once the generation is above this one.")
]


@router.get(
    "/plan",
    responses={
        **tells(Answer),
        204: {"description": "No newer plan within `wait_seconds`"},
        **READ_PROBLEMS,
    },
)
async def get_plan(
    job: JobPath,
    desk: DeskDep,
    request: Request,
    *,
    after_generation: AfterGeneration = None,
    wait_seconds: WaitSeconds = 0.0,
    detail: DetailQuery = Detail.FULL,
) -> Response:
    """The plan to go on with; with `after_generation` and `wait_seconds` as soon as there is a newer one.

    A plan that waits for approval is not among them: `/plans/{generation}` shows it.
    """
    desk.check_wait(wait_seconds)
    found = await desk.read(desk.service.standing_decision, job)
    if after_generation is not None and found.decision.generation <= after_generation and wait_seconds > 0:
        found = await _awaited(desk, request, job, after_generation, wait_seconds)
    if after_generation is not None and found.decision.generation <= after_generation:
        return Response(status_code=HTTPStatus.NO_CONTENT, headers={"ETag": etag(found)})
    return answer(job, found, detail)


@router.get("/plans/{generation}", responses=tells(Answer) | READ_PROBLEMS)
async def get_plan_at(job: JobPath, generation: GenerationPath, desk: DeskDep, detail: DetailQuery = Detail.FULL) -> Response:
    """The decision of one generation, which never changes, and how its plan stands now."""
    return answer(job, await desk.read(desk.service.standing_decision, job, generation), detail)


async def _awaited(desk: Desk, request: Request, job: str, above: int, seconds: float) -> StandingDecision:
    generation = above
    with desk.access.places.one(), desk.metrics.waiting.track_inprogress(), while_there(request):
        generation = await desk.watch.wait(job, above, seconds)
    kept = desk.service.kept(job, generation)  # a thousand may wake at once: none takes a thread for it
    return kept if kept is not None else await desk.read(desk.service.standing_decision, job)
