"""Templates filled in, with the headers that keep pages to themselves; refusals as pages."""

import re
from collections.abc import Callable, Coroutine
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any

import jinja2
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.responses import HTMLResponse

from api.access.callers import caller
from api.dashboard.formats import FILTERS
from api.http.conditional import entity_tag, is_known
from api.problems import refused_value, status_of
from kintsugi.core.errors import KintsugiError
from kintsugi.core.version import __version__

FOLDER = Path(__file__).parent
SECURITY = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
"""Nothing from other hosts, nothing inline, no frames."""
PICTURE_SECURITY = {**SECURITY, "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"}
"""For SVG files, which bring their style with them and nothing else."""
TURNING = re.compile("[\u202a-\u202e\u2066-\u2069]")
"""Marks in texts of others that turn the direction of what stands behind them, the service's own words among it."""


def page(request: Request, template: str, status: HTTPStatus = HTTPStatus.OK, **context: Any) -> Response:
    """A page; 304 where the caller has it already. Pages are always asked for again, so that none is older than its job."""
    text = (
        _environment()
        .get_template(template)
        .render(version=__version__, path=request.url.path, is_signed_in=caller().token is not None, **context)
    )
    text = TURNING.sub(lambda mark: f"\\u{ord(mark[0]):04x}", text)
    body = text.encode(errors="backslashreplace")  # texts of others may have lone surrogates, which JSON can say
    tag = entity_tag(body)
    headers = {**SECURITY, "ETag": tag, "Cache-Control": "no-cache"}
    if status is HTTPStatus.OK and is_known(request.headers.get("if-none-match", ""), tag):
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    return HTMLResponse(body, status, headers)


@cache
def _environment() -> jinja2.Environment:
    """Every value is escaped; a name that a template misspells is an error."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(FILTERS)
    return environment


class PageRoute(APIRoute):
    """Answers refusals with a page, where other routes answer with a problem document."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler of the route, refusals included."""
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            try:
                return await handle(request)
            except KintsugiError as error:
                return refusal(request, error)
            except RequestValidationError as error:
                return refusal(request, refused_value(error))

        return handled


def refusal(request: Request, error: KintsugiError) -> Response:
    """The page that says what was refused and where to go on."""
    status = status_of(error)
    return page(request, "error.html", status, title=status.phrase, number=int(status), error=error.as_dict())
