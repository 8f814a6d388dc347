"""The pages' addresses."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from starlette.responses import FileResponse, RedirectResponse

from api.dashboard.charts import recovery_chart, step_chart
from api.dashboard.facts import job_lines
from api.dashboard.grid import grid_of
from api.dashboard.past import past_of
from api.dashboard.questions import Question, Reply, hosts_of, replied
from api.dashboard.reasons import choice_of
from api.dashboard.rendering import FOLDER, PICTURE_SECURITY, SECURITY, PageRoute, page
from api.dashboard.scene import Scene, scene_of
from api.dashboard.schedules import has_picture, packed_schedule, picture_of
from api.deps import LARGEST_GENERATION, DeskDep, JobPath
from api.studies import considered
from kintsugi.core.errors import NotFoundError

router = APIRouter(include_in_schema=False, route_class=PageRoute)

JOBS_PER_PAGE = 50
MOST_OVERLAYS = 50
STATIC = FOLDER / "static"
MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

Generation = Annotated[int | None, Query(ge=0, le=LARGEST_GENERATION)]
Names = Annotated[list[str], Query(default_factory=list, max_length=4096)]
SpeedRatio = Annotated[float, Query(gt=0, le=100, allow_inf_nan=False)]
After = Annotated[str | None, Query(max_length=200)]


@dataclass(frozen=True, slots=True)
class Visit:
    """Somebody looks at a job: at its latest decision, or at one that is named."""

    request: Request
    desk: DeskDep
    job: JobPath
    generation: Generation = None

    def scene(self) -> Scene:
        """What is looked at."""
        return scene_of(self.desk.service, self.job, self.generation)


VisitDep = Annotated[Visit, Depends()]


def asked(fail: Names, fail_host: Names, slow: Names, join: Names, speed_ratio: SpeedRatio = 0.5) -> Question:
    """The question in an address; who is named twice counts once."""
    once = [tuple(dict.fromkeys(names)) for names in (fail, fail_host, slow, join)]
    return Question(fail=once[0], fail_hosts=once[1], slow=once[2], join=once[3], speed_ratio=speed_ratio)


Context = Callable[[Scene], dict[str, Any]]
"""From a job's scene to what the template needs beside it."""


@router.get("/")
@router.get("/dashboard/")
async def home() -> Response:
    """The way to the jobs."""
    return RedirectResponse("/dashboard")


@router.get("/dashboard")
async def jobs(request: Request, desk: DeskDep, after: After = None, *, ended: bool = False) -> Response:
    """The jobs that go on, or those that ended."""

    def work() -> Response:
        lines, cursor = job_lines(desk.service, after, JOBS_PER_PAGE, ended=ended)
        overlays = () if ended or after is not None else desk.overlays.scheduler.book.overlays(MOST_OVERLAYS)
        title = "Jobs that ended" if ended else "Jobs"
        return page(request, "jobs.html", title=title, lines=lines, cursor=cursor, after=after, overlays=overlays, ended=ended)

    return await desk.read(work)


@router.get("/dashboard/jobs/{job}")
async def job(visit: VisitDep) -> Response:
    """One job: its grid and its numbers."""
    return await _page_of(visit, "job", lambda scene: {"grid": grid_of(scene)})


@router.get("/dashboard/jobs/{job}/schedule")
async def schedule(visit: VisitDep) -> Response:
    """The schedules before and after a decision."""
    return await _page_of(visit, "schedule", lambda scene: {"has_picture": has_picture(scene)})


@router.get("/dashboard/jobs/{job}/why")
async def why(visit: VisitDep) -> Response:
    """Why a plan won."""
    return await _page_of(visit, "why", lambda scene: {"choice": choice_of(scene)})


@router.get("/dashboard/jobs/{job}/history")
async def history(visit: VisitDep, below: Generation = None) -> Response:
    """Generations and recoveries."""

    def context(_: Scene) -> dict[str, Any]:
        past = past_of(visit.desk.service, visit.job, below)
        charts = {"steps": step_chart(past.chapters), "recoveries": recovery_chart(past.chapters)} if past.chapters else {}
        return {"past": past, "steps": None, "recoveries": None, **charts}

    return await _page_of(visit, "history", context)


@router.get("/dashboard/jobs/{job}/whatif")
async def whatif(visit: VisitDep, question: Annotated[Question, Depends(asked)]) -> Response:
    """What would be decided if; nothing is stored."""
    service = visit.desk.service

    def context(scene: Scene) -> dict[str, Any]:
        reply = Reply() if question.is_empty else replied(question, scene, service, lambda study: considered(study, service))
        return {"grid": grid_of(scene), "hosts": hosts_of(scene), "question": question, "reply": reply}

    return await _page_of(visit, "whatif", context)


@router.get("/dashboard/jobs/{job}/schedule.json")
async def schedule_data(visit: VisitDep) -> Response:
    """The chart's data."""
    packed = await visit.desk.plan(lambda: packed_schedule(visit.scene()))
    headers = {**SECURITY, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
    if "gzip" not in visit.request.headers.get("accept-encoding", ""):
        return Response(packed.text(), media_type="application/json", headers=headers)
    return Response(packed.content, media_type="application/json", headers={**headers, "Content-Encoding": "gzip"})


@router.get("/dashboard/jobs/{job}/schedule.svg")
async def schedule_picture(visit: VisitDep) -> Response:
    """The chart as a picture."""
    text = await visit.desk.plan(lambda: picture_of(visit.scene()))
    return Response(text, media_type="image/svg+xml", headers={**PICTURE_SECURITY, "Cache-Control": "no-cache"})


@router.get("/dashboard/static/{name}")
async def static(name: str) -> Response:
    """Style, scripts and icon."""
    path = STATIC / Path(name).name
    if path.suffix not in MEDIA_TYPES or not path.is_file():
        raise NotFoundError("is no file of the dashboard", field="name", value=name)
    return FileResponse(path, media_type=MEDIA_TYPES[path.suffix], headers={**SECURITY, "Cache-Control": "no-cache"})


@router.get("/dashboard/{path:path}")
async def nowhere(path: str) -> Response:
    """Addresses that no page has."""
    raise NotFoundError("there is no such page", field="path", value=path)


async def _page_of(visit: Visit, name: str, context: Context = lambda _: {}) -> Response:
    """A page about one job; `name` is the template's and the tab's."""

    def work() -> Response:
        scene = visit.scene()
        return page(visit.request, f"{name}.html", title=scene.summary.id, tab=name, scene=scene, **context(scene))

    return await visit.desk.plan(work)
