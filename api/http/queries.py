"""Query parameters that a call does not have, or is given twice, are refused: a misspelt `wait_seconds` makes a busy loop of a
long poll, and of two values nobody knows which one counts. So is what no database can look up, in the path as in the query.
"""

from collections.abc import Iterator

from fastapi import Request
from fastapi.dependencies.models import Dependant

from kintsugi.core import checks
from kintsugi.core.errors import InvalidInputError, some


async def only_known(request: Request) -> None:
    """Require that every query parameter is one of the call's, and given once.

    Raises:
        InvalidInputError: names the first that is not.
    """
    if not request.query_params:
        return
    known = tuple(dict.fromkeys(_parameters(request.scope["route"].dependant)))
    given: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name not in known:
            has = f"it has {some(known)}" if known else "it has none"
            raise InvalidInputError(f"is no query parameter of this call; {has}", field=name, value=value)
        if name in given:
            raise InvalidInputError(f"is given twice, as {given[name]!r} before; leave one out", field=name, value=value)
        given[name] = value


async def only_characters(request: Request) -> None:
    """Require that every parameter of path and query is made of characters.

    Raises:
        InvalidInputError: names the first that is not.
    """
    for name, value in (*request.path_params.items(), *request.query_params.multi_items()):
        checks.storable(name, str(value))


def _parameters(dependant: Dependant) -> Iterator[str]:
    """Of a route's own function and of all that it depends on."""
    yield from (parameter.alias for parameter in dependant.query_params)
    for dependency in dependant.dependencies:
        yield from _parameters(dependency)
