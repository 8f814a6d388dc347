"""Which operation a request is for: known before the application is asked, by the very routes that it goes by."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from fastapi.routing import RouteContext, iter_route_contexts
from starlette._utils import get_route_path
from starlette.routing import BaseRoute, Mount, compile_path
from starlette.types import Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A template of paths, and the methods that it takes."""

    path: str
    methods: frozenset[str]
    pattern: re.Pattern[str] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a request is for."""

    path: str | None
    """Template of the route; None where there is none."""
    job: str | None
    """The job that the path names."""


def operations_of(routes: Sequence[BaseRoute]) -> tuple[Operation, ...]:
    """All operations of an application, in the order in which it tries them."""
    return tuple(_operation(context) for context in iter_route_contexts(routes))


def target_of(operations: Sequence[Operation], scope: Scope) -> Target:
    """The first operation that takes path and method, else the first that takes the path; as Starlette's router chooses."""
    path = get_route_path(scope)
    partial: Target | None = None
    for operation in operations:
        match = operation.pattern.match(path)
        if match is None:
            continue
        target = Target(path=operation.path, job=match.groupdict().get("job"))
        if scope["method"] in operation.methods or not operation.methods:
            return target
        partial = partial or target
    return partial or Target(path=None, job=None)


def _operation(context: RouteContext) -> Operation:
    is_mount = isinstance(context.original_route, Mount)
    path = str(context.path)
    pattern, _, _ = compile_path(f"{path.rstrip('/')}/{{rest:path}}" if is_mount else path)
    return Operation(path=path, methods=frozenset(context.methods or ()), pattern=pattern)
