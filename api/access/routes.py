"""Tokens, the audit log, and signing in."""

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from api.access import sessions
from api.access.addresses import neighbourhood, scheme_of
from api.access.audit import AuditPage
from api.access.callers import caller
from api.access.tokens import IssuedToken, NewToken, Token, TokenPage
from api.dashboard.rendering import page
from api.deps import BODY_PROBLEMS, READ_PROBLEMS, Cursor, Desk, DeskDep, Limit, reply
from api.http.bodies import decoded, takes, tells
from kintsugi.core import codec

router = APIRouter(prefix="/v1", tags=["access"])
pages = APIRouter(include_in_schema=False)

NewTokenBody = Annotated[NewToken, Depends(decoded(lambda data: codec.decode(NewToken, data)))]
TokenPath = Annotated[str, Path(min_length=1, max_length=200, description="Id of the token.")]
JobQuery = Annotated[str | None, Query(min_length=1, max_length=200, description="Records of this job alone.")]


@router.post(
    "/tokens",
    status_code=HTTPStatus.CREATED,
    responses=tells(IssuedToken, HTTPStatus.CREATED) | BODY_PROBLEMS,
    openapi_extra=takes(NewToken),
)
async def issue_token(body: NewTokenBody, desk: DeskDep) -> Response:
    """Issue a token; its secret is shown in this answer and never again.

    Where nobody needed a token so far everybody does from here on, unless `KINTSUGI_REQUIRE_TOKENS` is `never`.

    There is no `Idempotency-Key`: an answer that is lost leaves a token whose secret nobody knows, to be revoked.
    """
    issued = await desk.read(desk.access.issue, body)
    return reply(issued, HTTPStatus.CREATED, {"Location": f"/v1/tokens/{issued.token.id}", "Cache-Control": "no-store"})


@router.get("/tokens", responses=tells(TokenPage) | READ_PROBLEMS)
async def list_tokens(desk: DeskDep, cursor: Cursor = None, limit: Limit = 100) -> Response:
    """Tokens in the order in which they were issued, without their secrets; revoked and expired ones too."""
    return reply(await desk.read(desk.access.vault.page, cursor, limit))


@router.delete("/tokens/{token}", responses=tells(Token) | READ_PROBLEMS)
async def revoke_token(token: TokenPath, desk: DeskDep) -> Response:
    """Revoke a token: this process refuses it at once, others on the same database within five seconds."""
    return reply(await desk.read(desk.access.vault.revoke, token))


@router.get("/audit", responses=tells(AuditPage) | READ_PROBLEMS)
async def list_audit(desk: DeskDep, cursor: Cursor = None, limit: Limit = 100, job: JobQuery = None) -> Response:
    """Writes and refusals, the oldest first: who, from where, what, when, and how it ended."""
    return reply(await desk.read(_audit_page, desk, cursor, limit, job))


@pages.get("/login")
async def login_page(request: Request, target: Annotated[str | None, Query(alias="next", max_length=2_000)] = None) -> Response:
    """The form that asks for a token."""
    return _form(request, sessions.safe_target(target))


@pages.post("/login")
async def login(request: Request, desk: DeskDep) -> Response:
    """Put a usable token into a cookie."""
    scheme = scheme_of(request.scope, desk.settings.trusted_proxies)
    sessions.require_same_origin(request.headers, scheme)
    access, origin = desk.access, neighbourhood(caller().address)
    fields = await sessions.form_of(request)
    secret, target = fields.get("token", "").strip(), sessions.safe_target(fields.get("next"))
    if await desk.read(access.vault.find, secret) is None:
        access.failures.take(origin)
        return _form(request, target, HTTPStatus.UNAUTHORIZED)
    return sessions.signed_in(secret, target, is_secure=scheme == "https", hours=desk.settings.sign_in_hours)


@pages.post("/logout")
async def logout(request: Request, desk: DeskDep) -> Response:
    """Take the cookie away."""
    scheme = scheme_of(request.scope, desk.settings.trusted_proxies)
    sessions.require_same_origin(request.headers, scheme)
    return sessions.signed_out(is_secure=scheme == "https")


def _audit_page(desk: Desk, cursor: str | None, limit: int, job: str | None) -> AuditPage:
    return desk.access.auditor.page(cursor, limit, job)


def _form(request: Request, target: str, status: HTTPStatus = HTTPStatus.OK) -> Response:
    is_refused = status is HTTPStatus.UNAUTHORIZED
    response = page(request, "login.html", status, title="Sign in", target=target, is_refused=is_refused)
    response.headers["Cache-Control"] = "no-store"
    if is_refused:
        response.headers["WWW-Authenticate"] = 'Bearer realm="kintsugi"'
    return response
