"""Signing in with a browser: the token in a cookie that no script reads and no other site sends."""

from contextlib import aclosing
from http import HTTPStatus
from urllib.parse import parse_qs, quote, urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request, cookie_parser
from starlette.responses import RedirectResponse, Response
from starlette.types import Scope

from kintsugi.core.errors import ForbiddenError

HOME = "/dashboard"
MOST_FORM_FIELDS = 10
MOST_FORM_BYTES = 4_000


def cookie_name(*, is_secure: bool) -> str:
    """Name of the cookie; under TLS one that browsers take from this very host alone, and only encrypted."""
    return "__Host-kintsugi" if is_secure else "kintsugi"


def cookie_secret(headers: Headers, *, is_secure: bool) -> str | None:
    """The token in a request's cookie, if there is one."""
    cookies: dict[str, str] = cookie_parser("; ".join(headers.getlist("cookie")))
    return cookies.get(cookie_name(is_secure=is_secure))


def signed_in(secret: str, target: str, *, is_secure: bool, hours: float) -> Response:
    """The way to `target`, with the cookie."""
    response = RedirectResponse(target, HTTPStatus.SEE_OTHER, {"Cache-Control": "no-store"})
    name = cookie_name(is_secure=is_secure)
    response.set_cookie(name, secret, max_age=int(hours * 3600), secure=is_secure, httponly=True, samesite="strict")
    return response


def signed_out(*, is_secure: bool) -> Response:
    """The way to the form, without the cookie."""
    response = RedirectResponse("/login", HTTPStatus.SEE_OTHER, {"Cache-Control": "no-store"})
    response.delete_cookie(cookie_name(is_secure=is_secure), secure=is_secure, httponly=True, samesite="strict")
    return response


def to_login(scope: Scope) -> Response:
    """The way to the form, and from there back."""
    query = scope["query_string"].decode("latin-1")
    back = f"{quote(scope['path'])}{'?' if query else ''}{query}"
    return RedirectResponse(f"/login?next={quote(back, safe='')}", HTTPStatus.SEE_OTHER, {"Cache-Control": "no-store"})


def safe_target(text: str | None) -> str:
    """Where to go after signing in: a path of the dashboard, never another site."""
    is_own = text is not None and text.isprintable() and (text == HOME or text.startswith((f"{HOME}/", f"{HOME}?")))
    return text if is_own and text is not None and "\\" not in text else HOME


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a form that is submitted; of what is longer than any of ours its beginning: strangers may send it, too."""
    body = b""
    async with aclosing(request.stream()) as parts:
        async for part in parts:
            body += part
            if len(body) > MOST_FORM_BYTES:
                break
    return form_fields(body[:MOST_FORM_BYTES])


def form_fields(body: bytes) -> dict[str, str]:
    """The fields of a submitted form, each once; nothing where it is none."""
    try:
        pairs = parse_qs(body.decode(), max_num_fields=MOST_FORM_FIELDS)
    except ValueError:
        return {}
    return {name: values[0] for name, values in pairs.items()}


def require_same_origin(headers: Headers, scheme: str) -> None:
    """Require that a page of this service made a request, and not one of another site.

    Raises:
        ForbiddenError: another one did, or the browser does not say.
    """
    origin, host = headers.get("origin"), headers.get("host", "")
    if origin is None and headers.get("sec-fetch-site") == "same-origin":
        return
    if origin is not None and _origin(origin) == (scheme, host.lower()):
        return
    message = (
        f"must be {scheme}://{host[:200]}, as this service is called: use its own pages, and where a proxy is "
        "before it, have that pass Host and X-Forwarded-Proto, and list it in KINTSUGI_TRUSTED_PROXIES"
    )
    raise ForbiddenError(message, field="Origin", value=origin and origin[:200])


def refuse_other_sites(headers: Headers, scheme: str) -> None:
    """Refuse what a page of another site has a browser send, which tells of it; programs tell nothing.

    Raises:
        ForbiddenError: another site's page sent it.
    """
    if "origin" in headers or headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        require_same_origin(headers, scheme)


def _origin(text: str) -> tuple[str, str]:
    try:
        parts = urlsplit(text)
    except ValueError:
        return "", ""
    return parts.scheme, parts.netloc.lower()
