"""Tokens: what they allow, and what is kept of their secrets."""

import hashlib
import re
import secrets
from dataclasses import dataclass
from enum import StrEnum

from kintsugi.core import checks
from kintsugi.core.errors import ForbiddenError, InvalidInputError
from kintsugi.core.profile import PYDANTIC_CONFIG

PREFIX = "kgi"
"""Of every secret, so that scanners of repositories and logs find those that leaked."""
SECRET = re.compile(rf"{PREFIX}_([0-9a-f]{{16}})_[A-Za-z0-9_-]{{43}}")
"""The token's public id, and 256 random bits in base64url."""
LOOSE_SECRET = re.compile(rf"{PREFIX}_[0-9a-f]{{16}}_[A-Za-z0-9_-]*")
"""A secret in the midst of other text, even one that is cut off."""
NAME = re.compile(r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,100}")
LONGEST_LIFE_SECONDS = 3.2e9
"""A hundred years: more is not an end that anybody meant, and beyond the calendar soon."""


class Scope(StrEnum):
    """What a token allows; each scope allows what those before it do."""

    READ = "read"
    """Look at jobs and ask what-if questions."""
    REPORT = "report"
    """Report events, heartbeats and what became of plans; with a token for all jobs also create jobs."""
    ADMINISTER = "administer"
    """Everything else; with a token for all jobs also tokens and the audit log."""

    def includes(self, other: "Scope") -> bool:
        """Whether this scope allows what `other` does."""
        order = list(Scope)
        return order.index(self) >= order.index(other)


class InsufficientScopeError(ForbiddenError):
    """The token's scope does not allow what was asked, and `needed` does."""

    def __init__(self, needed: Scope, held: Scope) -> None:
        message = f"needs a token of scope {needed.value}, and this one has {held.value}"
        super().__init__(message, field="Authorization", value=needed.value)
        self.needed = needed


@dataclass(frozen=True, slots=True, kw_only=True)
class NewToken:
    """A token to issue."""

    __pydantic_config__ = PYDANTIC_CONFIG

    name: str
    """Who or what it is for, 1 to 100 characters: the audit log shows it."""
    scope: Scope = Scope.READ
    job: str | None = None
    """The only job that it is for, which need not be there yet; null for all jobs."""
    expires_in_seconds: float | None = None
    """How long it is good for; null for as long as it is not revoked."""

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name) or not self.name.strip():
            raise InvalidInputError("must be 1 to 100 printable characters", field="name", value=self.name[:200])
        if self.job is not None:
            checks.path_segment("job", self.job)
        if self.expires_in_seconds is not None:
            checks.positive("expires_in_seconds", self.expires_in_seconds)
            checks.seconds("expires_in_seconds", self.expires_in_seconds, at_most=LONGEST_LIFE_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A token without its secret."""

    __pydantic_config__ = PYDANTIC_CONFIG

    id: str
    name: str
    scope: Scope
    job: str | None
    """The only job that it is for; null for all jobs."""
    created_at: str
    expires_at: str | None
    revoked_at: str | None

    def is_usable(self, now: str) -> bool:
        """Whether it is neither revoked nor expired at the moment `now` (RFC 3339)."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedToken:
    """A new token with its secret, which is shown this once and kept nowhere."""

    __pydantic_config__ = PYDANTIC_CONFIG

    token: Token
    secret: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPage:
    """Tokens in the order in which they were issued."""

    __pydantic_config__ = PYDANTIC_CONFIG

    tokens: tuple[Token, ...]
    next_cursor: str | None


def new_id() -> str:
    """The public name of a new token."""
    return secrets.token_hex(8)


def new_secret(token: str) -> str:
    """A secret for the token of this id."""
    return f"{PREFIX}_{token}_{secrets.token_urlsafe(32)}"


def digest_of(secret: str) -> str:
    """SHA-256 of a secret: one round is enough where 256 random bits are to be guessed."""
    return hashlib.sha256(secret.encode()).hexdigest()


def id_in(secret: str) -> str | None:
    """The id of the token that a secret speaks for; None where it is none by its form."""
    match = SECRET.fullmatch(secret)
    return match[1] if match else None


def redacted(text: str) -> str:
    """`text` with what is secret of every token in it left out."""
    return LOOSE_SECRET.sub(f"{PREFIX}_...", text)
