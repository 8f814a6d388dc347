"""What would have happened: small simulations that store nothing."""

from http import HTTPStatus

from fastapi import APIRouter, Request, Response

from api.deps import BODY_PROBLEMS, DeskDep, reply
from api.http.bodies import SimulationBody, refuses, takes, tells
from api.schemas import SimulationReply, SimulationRequest

router = APIRouter(prefix="/v1", tags=["studies"])
PROBLEMS = BODY_PROBLEMS | refuses(HTTPStatus.SERVICE_UNAVAILABLE)


@router.post("/simulations", responses=tells(SimulationReply) | PROBLEMS, openapi_extra=takes(SimulationRequest))
async def post_simulation(request: Request, body: SimulationBody, desk: DeskDep) -> Response:
    """What would have happened to a job under each policy; refused where it takes too long."""
    return reply(await desk.study(request, _simulated, body, desk.settings.max_simulation_seconds))


def _simulated(request: SimulationRequest, limit_seconds: float) -> SimulationReply:
    from api.simulations import simulated  # by the first who asks: a service that starts need not wait for the simulator

    return simulated(request, limit_seconds)
