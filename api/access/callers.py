"""On whose behalf something is done: who calls is known to everything that the call leads to, in all its threads."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from api.access.tokens import Scope, Token
from kintsugi.core.errors import NotFoundError


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who sent a request."""

    token: Token | None = None
    """None where tokens are not asked for, and for what the service does by itself."""
    address: str = ""

    @property
    def only_job(self) -> str | None:
        """The one job that the caller may see; None for all jobs."""
        return None if self.token is None else self.token.job

    @property
    def administers(self) -> bool:
        """Whether the caller may change everything of the jobs that it may see."""
        return self.token is None or self.token.scope.includes(Scope.ADMINISTER)

    def sees(self, job: str) -> bool:
        """Whether the caller may know of `job`, be it there or not."""
        return self.only_job in (None, job)

    def require(self, job: str) -> None:
        """Require a job that the caller may know of.

        Raises:
            NotFoundError: it may not: the very error of a job that is not there.
        """
        if not self.sees(job):
            raise no_job(job)


ITSELF = Caller()
"""The service, where nobody calls."""
_CALLER: ContextVar[Caller] = ContextVar("caller", default=ITSELF)


def caller() -> Caller:
    """On whose behalf the present code runs."""
    return _CALLER.get()


@contextmanager
def calling(present: Caller) -> Iterator[None]:
    """Everything within is done on behalf of `present`."""
    mark = _CALLER.set(present)
    try:
        yield
    finally:
        _CALLER.reset(mark)


def no_job(job: str) -> NotFoundError:
    """The error for an id that no job has, or none that the caller may know of."""
    return NotFoundError("there is no job of this id", field="job", value=job)


def own_key(key: str | None) -> str | None:
    """An `Idempotency-Key` under which nobody but the caller's token finds anything."""
    token = caller().token
    return key if key is None or token is None else f"{token.id}{OWNER_MARK}{key}"


def shown_key(key: str) -> str:
    """The key as its owner sent it."""
    return key.rpartition(OWNER_MARK)[2]


OWNER_MARK = "\n"
"""Between a token's id and its key: no header can hold it, so nobody can write another token's key."""
