"""The nouns of webhooks: where to send, what about, and how each delivery stands."""

import base64
import binascii
from dataclasses import dataclass
from enum import StrEnum

from api.webhooks.urls import split_url
from kintsugi.core import checks
from kintsugi.core.errors import InvalidInputError
from kintsugi.core.profile import PYDANTIC_CONFIG

SECRET_PREFIX = "whsec_"  # noqa: S105
LEAST_SECRET_BYTES, MOST_SECRET_BYTES = 24, 64
"""As the Standard Webhooks specification asks."""


class HookKind(StrEnum):
    """What a webhook is told."""

    PLAN_DECIDED = "plan_decided"
    """A new plan: a generation was decided."""
    PLAN_MISSING = "plan_missing"
    """Events left the job without a plan."""
    JOB_ENDED = "job_ended"
    """Somebody said that the job is over."""


class DeliveryStatus(StrEnum):
    """How a delivery stands."""

    PENDING = "pending"
    """It will be tried, or tried again."""
    DELIVERED = "delivered"
    """The receiver answered 2xx."""
    DEAD = "dead"
    """Given up; it is sent again only when somebody asks for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookTarget:
    """Where a webhook sends, what about, and the secret it signs with."""

    __pydantic_config__ = PYDANTIC_CONFIG

    url: str
    """http or https, without user and fragment, to a host that something may be sent to; redirects are not followed."""
    secret: str
    """`whsec_` and the base64 form of 24 to 64 random bytes; it is stored, and never shown again."""
    kinds: tuple[HookKind, ...] = (HookKind.PLAN_DECIDED, HookKind.PLAN_MISSING)

    def __post_init__(self) -> None:
        split_url(self.url)
        secret_bytes(self.secret)
        checks.not_empty("kinds", self.kinds)
        checks.unique("kinds", [kind.value for kind in self.kinds])


@dataclass(frozen=True, slots=True, kw_only=True)
class NewWebhook(WebhookTarget):
    """A webhook to add to a job; it is told what happens from now on."""

    __pydantic_config__ = PYDANTIC_CONFIG

    id: str | None = None
    """1 to 100 letters, digits, dots, dashes and underscores; null lets the service choose."""

    def __post_init__(self) -> None:
        WebhookTarget.__post_init__(self)
        if self.id is not None:
            checks.identifier("id", self.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """A webhook as it is shown: without its secret."""

    __pydantic_config__ = PYDANTIC_CONFIG

    id: str
    job: str
    url: str
    """For callers who may not administer, the server alone and `...`: path and query often hold a secret."""
    kinds: tuple[HookKind, ...]
    created_at: str
    """RFC 3339, UTC."""
    changed_at: str
    """RFC 3339, UTC; of the last change to url, secret or kinds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookList:
    """All webhooks of a job, in the order of their ids."""

    __pydantic_config__ = PYDANTIC_CONFIG

    webhooks: tuple[Webhook, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One event on its way to one webhook."""

    __pydantic_config__ = PYDANTIC_CONFIG

    id: str
    """The CloudEvent's id: stable over retries, unique among the events of the job."""
    status: DeliveryStatus
    created_at: str
    """RFC 3339, UTC."""
    attempts: int
    """Attempts that came to an end."""
    due_at: str
    """RFC 3339, UTC; of the next attempt while pending, else of the last."""
    last_status: int | None
    """The receiver's last HTTP status; null where it gave none."""
    last_error: str | None
    """Why the last attempt failed; null where it did not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryPage:
    """Some deliveries of a webhook, the oldest first."""

    __pydantic_config__ = PYDANTIC_CONFIG

    deliveries: tuple[Delivery, ...]
    next_cursor: str | None
    """Give it as `cursor` for the next page; null at the end."""


def secret_bytes(secret: str) -> bytes:
    """The key that a secret stands for.

    Raises:
        InvalidInputError: it is no secret as Standard Webhooks writes it; the value is not told.
    """
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not secret.startswith(SECRET_PREFIX) or not LEAST_SECRET_BYTES <= len(key) <= MOST_SECRET_BYTES:
        raise InvalidInputError("must be whsec_ and the base64 form of 24 to 64 random bytes", field="secret")
    return key
