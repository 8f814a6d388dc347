"""Plans for other tools: their schedules as traces, and themselves in the words of other systems."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from api.deps import READ_PROBLEMS, DeskDep, GenerationPath, JobPath, reply
from api.exports import plan_export, plan_trace
from api.http.bodies import tells
from kintsugi.formats.exports import Export, ExportFormat

router = APIRouter(prefix="/v1/jobs/{job}/plans/{generation}", tags=["plans"])

TRACE: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The Trace Event Format, which Perfetto loads",
        "content": {"application/json": {"schema": {"type": "object", "required": ["traceEvents"]}}},
    }
}


@router.get("/trace", response_class=Response, responses=TRACE | READ_PROBLEMS)
async def get_trace(job: JobPath, generation: GenerationPath, desk: DeskDep) -> Response:
    """The predicted schedule of a plan, one track per worker."""
    return Response(await desk.plan(plan_trace, desk.service, job, generation), media_type="application/json")


@router.get("/export", responses=tells(Export) | READ_PROBLEMS)
async def get_export(
    job: JobPath,
    generation: GenerationPath,
    desk: DeskDep,
    form: Annotated[ExportFormat, Query(alias="format", description="Whose words.")],
) -> Response:
    """A plan as Megatron-LM's layout, TorchTitan's module names, or the schedule file of torch.distributed.pipelining."""
    return reply(await desk.plan(plan_export, desk.service, job, generation, form))
