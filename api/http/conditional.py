"""Conditional requests (RFC 9110, section 13): entity tags on what is read, and preconditions on what is changed."""

import hashlib
from http import HTTPStatus

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.problems import PreconditionFailedError

JSON = "application/json"
READING = ("GET", "HEAD")


def entity_tag(body: bytes | str) -> str:
    """The strong tag of a representation: equal tags mean equal bytes."""
    content = body.encode() if isinstance(body, str) else body
    return f'"{hashlib.sha256(content).hexdigest()[:32]}"'


def is_known(if_none_match: str, tag: str) -> bool:
    """Whether a client says that it has the representation of this tag (weak comparison)."""
    return any(candidate.strip().removeprefix("W/") in (tag, "*") for candidate in if_none_match.split(","))


def require_match(if_match: str, tag: str) -> None:
    """Require that a client means the representation of this tag (strong comparison: weak tags never match).

    Raises:
        PreconditionFailedError: it means another one.
    """
    if not any(candidate.strip() in (tag, "*") for candidate in if_match.split(",")):
        raise PreconditionFailedError("is not the present state: fetch it again", field="If-Match", value=if_match)


class ConditionalReads:
    """Gives every JSON answer to GET an entity tag, and answers 304 where the client has it already."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or scope["method"] not in READING:
            await self._app(scope, receive, send)
            return
        known = Headers(scope=scope).get("if-none-match")
        await self._app(scope, receive, _Tagging(send, known))


class _Tagging:
    """Holds back the head of an answer until its body is there, where the body decides about the tag."""

    def __init__(self, send: Send, known: str | None) -> None:
        self._send = send
        self._known = known
        self._head: Message | None = None
        self._drops = False

    async def __call__(self, message: Message) -> None:
        """Send one message of the answer, or keep it for the next."""
        if message["type"] != "http.response.start":
            await self._go_on(message)
        elif message["status"] == HTTPStatus.OK and "etag" in Headers(scope=message):
            await self._begin(message)
        elif message["status"] == HTTPStatus.OK and Headers(scope=message).get("content-type", "").startswith(JSON):
            self._head = message
        else:
            await self._send(message)

    async def _begin(self, head: Message) -> None:
        self._drops = self._known is not None and is_known(self._known, Headers(scope=head)["etag"])
        await self._send(_unchanged(head) if self._drops else head)

    async def _go_on(self, body: Message) -> None:
        if self._head is not None:
            head, self._head = self._head, None
            if body.get("more_body", False):
                await self._send(head)  # a stream has no tag
            else:
                MutableHeaders(scope=head)["ETag"] = entity_tag(body.get("body", b""))
                await self._begin(head)
        await self._send({**body, "body": b""} if self._drops else body)


def _unchanged(head: Message) -> Message:
    kept = [(name, value) for name, value in head["headers"] if name not in (b"content-length", b"content-type")]
    return {**head, "status": int(HTTPStatus.NOT_MODIFIED), "headers": kept}
