"""The gate before every request: who asks, may they, and not too often. It decides without looking at what is stored about jobs."""

from collections.abc import Sequence

import structlog
from anyio.to_thread import run_sync
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.access import sessions
from api.access.addresses import address_of, is_loopback, neighbourhood, require_own_name, scheme_of
from api.access.assembly import Access
from api.access.audit import AuditRecord
from api.access.callers import Caller, calling
from api.access.needs import READING, Need, need_of
from api.access.targets import Operation, Target, operations_of, target_of
from api.access.tokens import LOOSE_SECRET, InsufficientScopeError, Token, redacted
from api.moments import text_of, utc_now
from api.problems import CLIENT_GONE, REQUEST_ID, TEMPLATE, problem_of
from kintsugi.core.errors import ForbiddenError, InvalidInputError, KintsugiError, UnauthenticatedError

POLICY_VIOLATION = 1008
QUERY_NAMES = (b"access_token=", b"token=")
REFUSALS = (401, 403, 429)


class Gate:
    """Refuses what the caller may not do, tells everything behind it who calls, and records writes and refusals."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access
        self._operations: Sequence[Operation] = ()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": POLICY_VIOLATION})
        elif scope["type"] != "http":
            await self._app(scope, receive, send)
        else:
            self._operations = self._operations or operations_of(scope["app"].routes)
            target = target_of(self._operations, scope)
            scope["state"][TEMPLATE] = target.path
            await _Passage(self._app, self._access, scope, target).serve(receive, send)


class _Passage:
    """One request on its way through the gate."""

    def __init__(self, app: ASGIApp, access: Access, scope: Scope, target: Target) -> None:
        self._app = app
        self._access = access
        self._scope = scope
        self._target = target
        self._need = need_of(scope["method"], target.path)
        self._headers = Headers(scope=scope)
        self._address = address_of(scope, access.settings.trusted_proxies)
        self._token: Token | None = None
        self._status = CLIENT_GONE

    async def serve(self, receive: Receive, send: Send) -> None:
        async def observed(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._status = int(message["status"])
                if self._access.is_enforced:
                    MutableHeaders(scope=message).setdefault("Cache-Control", "private, no-cache")
            await send(message)

        refused = True
        try:
            answer = await self._refusal()
            refused = answer is not None
            if answer is not None:
                await answer(self._scope, receive, observed)
                return
            caller = Caller(token=self._token, address=self._address)
            with calling(caller), structlog.contextvars.bound_contextvars(token=self._token and self._token.id):
                await self._app(self._scope, receive, observed)
        finally:
            self._record(self._need, is_refusal=refused or self._status in REFUSALS)

    async def _refusal(self) -> Response | None:
        """What to answer in the application's place; None where it may answer itself."""
        try:
            _refuse_secrets_in_url(self._scope)
            if not self._need.is_open and await self._access.asks_for_tokens():
                await self._authenticate()
                self._access.requests.take(self._token.id if self._token else "")
                self._authorize()
            else:
                self._require_own_site()
                if not self._need.is_probe:
                    self._access.requests.take(neighbourhood(self._address))
        except UnauthenticatedError as error:
            return sessions.to_login(self._scope) if self._is_page() else self._problem(error)
        except KintsugiError as error:
            return self._problem(error)
        return None

    def _problem(self, error: KintsugiError) -> Response:
        has_secret = LOOSE_SECRET.search(self._scope["path"]) is not None
        response = problem_of(error, instance="" if has_secret else self._scope["path"])
        response.headers["Cache-Control"] = "no-store"
        return response

    async def _authenticate(self) -> None:
        secret, vault = self._secret(), self._access.vault
        if secret is not None:
            self._token = vault.recent(secret) or await run_sync(vault.find, secret)
        if self._token is None:
            self._access.failures.take(neighbourhood(self._address))
            raise UnauthenticatedError(
                "no usable token came with the request; send one as `Authorization: Bearer kgi_...`", field="Authorization"
            )

    def _secret(self) -> str | None:
        given = self._headers.getlist("authorization")
        if given:
            scheme, _, secret = given[0].partition(" ")
            return secret.strip() if len(given) == 1 and scheme.lower() == "bearer" else None
        is_secure = scheme_of(self._scope, self._access.settings.trusted_proxies) == "https"
        return sessions.cookie_secret(self._headers, is_secure=is_secure)

    def _authorize(self) -> None:
        assert self._token is not None
        if self._target.job is not None:
            Caller(token=self._token).require(self._target.job)
        if not self._token.scope.includes(self._need.scope):
            raise InsufficientScopeError(self._need.scope, self._token.scope)
        if self._need.all_jobs and self._token.job is not None:
            message = "needs a token for all jobs, and this one is for a single job"
            raise ForbiddenError(message, field="Authorization", value=self._need.scope.value)
        if self._scope["method"] not in READING and "authorization" not in self._headers:
            sessions.require_same_origin(self._headers, scheme_of(self._scope, self._access.settings.trusted_proxies))

    def _require_own_site(self) -> None:
        """Require that what no token is needed for comes from no page of another site, which any browser here may have open."""
        proxies = self._access.settings.trusted_proxies
        if is_loopback(self._access.settings.host) and not self._access.is_enforced:
            require_own_name(self._scope, proxies)
        if self._scope["method"] not in READING and not self._need.is_open:
            sessions.refuse_other_sites(self._headers, scheme_of(self._scope, proxies))

    def _is_page(self) -> bool:
        is_ours = self._scope["path"] == "/" or f"{self._scope['path']}/".startswith(f"{sessions.HOME}/")
        return is_ours and self._scope["method"] in READING

    def _record(self, need: Need, *, is_refusal: bool) -> None:
        counts = need.is_audited if not is_refusal else self._access.noted.passes(self._token.id if self._token else "")
        if not counts:
            return
        self._access.auditor.add(
            AuditRecord(
                at=text_of(utc_now()),
                token=self._token.id if self._token else None,
                name=self._token.name if self._token else None,
                address=self._address,
                method=self._scope["method"][:16],
                route=self._target.path,
                job=self._target.job and _storable(self._target.job),
                status=self._status,
                request=self._scope["state"][REQUEST_ID],
            )
        )


def _refuse_secrets_in_url(scope: Scope) -> None:
    """Require that no token is where proxies and browsers keep what they see."""
    query: bytes = scope["query_string"]
    has_name = any(part.lower().startswith(QUERY_NAMES) for part in query.split(b"&"))
    if has_name or LOOSE_SECRET.search(query.decode("latin-1")) or LOOSE_SECRET.search(scope["path"]):
        message = "holds a token, which others may have seen by now: revoke it, and send tokens in the Authorization header"
        raise InvalidInputError(message, field="url")


def _storable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in redacted(text))[:200]
