"""The webhooks of one service, put together from its settings."""

from dataclasses import dataclass
from ipaddress import ip_address

from api.metrics import Metrics
from api.settings import Settings
from api.storage.store import Store
from api.webhooks.collector import Collector
from api.webhooks.courier import Courier
from api.webhooks.guard import Guard
from api.webhooks.manners import Manners
from api.webhooks.outbox import Outbox
from api.webhooks.registry import Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhooks:
    """What people see of webhooks, and what serves them."""

    registry: Registry
    courier: Courier


def webhooks_of(settings: Settings, store: Store, metrics: Metrics) -> Webhooks:
    """Registry and courier on the service's own database."""
    guard = Guard(loopback=_is_loopback(settings.host), networks=settings.webhook_networks)
    manners = Manners(
        timeout_seconds=settings.webhook_timeout_seconds,
        first_retry_seconds=settings.webhook_first_retry_seconds,
        retry_seconds=settings.webhook_retry_seconds,
        keep_seconds=settings.webhook_keep_seconds,
    )
    outbox = Outbox(store.database)
    collector = Collector(store, outbox, retry_seconds=manners.retry_seconds)
    return Webhooks(
        registry=Registry(store.database, guard, retry_seconds=manners.retry_seconds),
        courier=Courier(collector, outbox, guard, metrics, manners),
    )


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
