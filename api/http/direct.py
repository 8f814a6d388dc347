"""The direct way to the operations that trainers call all day: FastAPI takes a third of a millisecond to choose a route, and to
resolve its arguments, which is as much as the rest of many answers takes.

A request whose path, query and headers are as plain as clients send them goes straight to the function that FastAPI would call,
with the arguments that it would give. Every other one takes FastAPI's way, and so does all that is to be refused for its
parameters: what is accepted, and what is said of the rest, is the same.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, get_type_hints
from urllib.parse import parse_qsl

from fastapi import Request, Response, params
from pydantic import TypeAdapter
from starlette.routing import Match, Route
from starlette.types import Scope

from kintsugi.core import checks

ARGUMENTS = "kintsugi.arguments"
"""Where a request's scope keeps the arguments that were read from it."""

Readers = dict[str, tuple[str, TypeAdapter[Any]]]
"""Name of an endpoint's parameter, and what accepts the texts that FastAPI accepts for it, by the name that requests give it."""


class DirectRoute(Route):
    """An operation that matches plain requests alone."""

    def __init__(self, method: str, path: str, endpoint: Callable[..., Awaitable[Response]]) -> None:
        """Look at the endpoint once.

        Args:
            method: the only one of the operation.
            path: template, with the prefix of its router.
            endpoint: answers with a response; its parameters come from path, query and headers, or are made of the request.

        Raises:
            TypeError: one of them comes from elsewhere.
        """
        super().__init__(path, self._answer, methods=[method], include_in_schema=False)
        self.methods = {method}  # Starlette adds HEAD to GET
        self._called = endpoint
        self._read: dict[type[params.Param], Readers] = {params.Path: {}, params.Query: {}, params.Header: {}}
        self._made: dict[str, Callable[[Request], Awaitable[Any]]] = {}
        hints = get_type_hints(endpoint, include_extras=True)
        for name in inspect.signature(endpoint).parameters:
            self._expect(name, hints[name])

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """A full match for a plain request, none for any other."""
        match, found = super().matches(scope)
        if match is not Match.FULL:
            return Match.NONE, {}
        try:
            found[ARGUMENTS] = dict(self._arguments(scope, found["path_params"].items()))
        except ValueError:
            return Match.NONE, {}
        return match, {**found, "route": self}

    def _expect(self, name: str, hint: Any) -> None:
        if hint is Request:
            self._made[name] = _itself
            return
        match next((mark for mark in hint.__metadata__ if isinstance(mark, params.Param | params.Depends)), None):
            case params.Depends(dependency=dependency) if inspect.iscoroutinefunction(dependency):
                self._made[name] = dependency
            case params.Header():
                self._read[params.Header][name.replace("_", "-")] = name, TypeAdapter(hint)
            case params.Path() | params.Query() as mark:
                self._read[type(mark)][name] = name, TypeAdapter(hint)
            case mark:
                raise TypeError(f"{name} comes from {mark!r}, which the direct way does not know")

    async def _answer(self, request: Request) -> Response:
        made = {name: await make(request) for name, make in self._made.items()}
        return await self._called(**request.scope[ARGUMENTS], **made)

    def _arguments(self, scope: Scope, path: Iterable[tuple[str, str]]) -> Iterator[tuple[str, Any]]:
        """What stands in path, query and headers; ValueError where something does that FastAPI is to judge."""
        headers = self._read[params.Header]
        texts = ((name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"])
        yield from _understood(self._read[params.Path], path)
        yield from _understood(self._read[params.Query], _queried(scope))
        yield from _understood(headers, [(name, value) for name, value in texts if name in headers])


def _queried(scope: Scope) -> list[tuple[str, str]]:
    return parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True, strict_parsing=True)


async def _itself(request: Request) -> Request:
    return request


def _understood(readers: Readers, given: Iterable[tuple[str, str]]) -> Iterator[tuple[str, Any]]:
    """Arguments by their parameters' names."""
    seen = set()
    for key, text in given:
        if key in seen or key not in readers:
            raise ValueError(key)
        seen.add(key)
        checks.storable(key, text)
        name, adapter = readers[key]
        yield name, adapter.validate_python(text)
