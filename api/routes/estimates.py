"""Questions that store nothing: estimates and what-if studies."""

from fastapi import APIRouter, Request, Response

from api.deps import BODY_PROBLEMS, DeskDep, reply
from api.http.bodies import EstimateBody, WhatIfBody, takes, tells
from api.schemas import EstimateRequest, WhatIf
from api.studies import considered, estimated
from kintsugi.core.decision import Decision, PlanEstimate

router = APIRouter(prefix="/v1", tags=["studies"])


@router.post("/estimates", responses=tells(PlanEstimate) | BODY_PROBLEMS, openapi_extra=takes(EstimateRequest))
async def post_estimate(request: Request, body: EstimateBody, desk: DeskDep) -> Response:
    """What a plan costs on a cluster, whether its workers have the memory for it or not: those that have too little are named."""
    return reply(await desk.study(request, estimated, body))


@router.post("/whatif", responses=tells(Decision) | BODY_PROBLEMS, openapi_extra=takes(WhatIf))
async def post_whatif(request: Request, body: WhatIfBody, desk: DeskDep) -> Response:
    """What would be decided if workers failed or joined; nothing is stored."""
    return reply(await desk.study(request, considered, body, desk.service))
