"""Access control put together: one for each application."""

import time
from contextlib import suppress
from dataclasses import dataclass

import structlog
from anyio.to_thread import run_sync

from api.access.addresses import is_loopback
from api.access.audit import Auditor
from api.access.limits import Buckets, Places
from api.access.tokens import IssuedToken, NewToken, Scope
from api.access.vault import CACHED_SECONDS, Vault
from api.settings import Settings
from api.storage.database import Database
from kintsugi.core.errors import InvalidInputError, UnavailableError

NOTED_PER_SECOND, NOTED_AT_ONCE = 1.0, 1_000
"""Refusals in the audit log: whoever floods the service with requests must not fill its disk."""

ENCRYPT = "give --tls-certificate and --tls-key, or list the proxy that encrypts in KINTSUGI_TRUSTED_PROXIES"


@dataclass(slots=True, kw_only=True)
class Access:
    """What the gate goes by."""

    settings: Settings
    vault: Vault
    auditor: Auditor
    requests: Buckets
    """Of tokens that were accepted, and of addresses where none is asked for."""
    failures: Buckets
    """Of addresses that sent no usable token."""
    noted: Buckets
    """Refusals of one token, or of all who have none, that go into the audit log."""
    places: Places
    is_enforced: bool
    """Whether requests need tokens, as far as is known; once they do they always do."""
    looked_at: float = 0.0
    """When it was last looked whether there are any."""

    def open(self) -> None:
        """Find out whether tokens are needed, and warn where they can be read on their way.

        Raises:
            InvalidInputError: they are, and there is none; or the one of the settings is none by its form.
        """
        adopt_workers(self.settings, self.vault)
        self.is_enforced = tokens_are_needed(self.settings, self.vault)
        if self.is_enforced and are_readable_on_the_way(self.settings):
            structlog.get_logger("kintsugi.api").warning("tokens travel unencrypted", host=self.settings.host, way_out=ENCRYPT)

    def issue(self, new: NewToken) -> IssuedToken:
        """A new token; from then on this process asks for tokens, unless it never does."""
        issued = self.vault.issue(new)
        self.is_enforced = self.settings.require_tokens != "never"
        return issued

    async def asks_for_tokens(self) -> bool:
        """Whether requests need tokens; the first that another process issues is noticed within `CACHED_SECONDS`."""
        may_begin = not self.is_enforced and self.settings.require_tokens != "never"
        if may_begin and time.monotonic() - self.looked_at >= CACHED_SECONDS:
            self.looked_at = time.monotonic()
            with suppress(UnavailableError):
                if await run_sync(self.vault.has_any):
                    self.is_enforced = True
        return self.is_enforced


def access_of(settings: Settings, database: Database) -> Access:
    """Access control by the settings."""
    return Access(
        settings=settings,
        vault=Vault(database),
        auditor=Auditor(database, keep_days=settings.keep_audit_days),
        requests=Buckets(
            rate=settings.max_requests_per_second,
            burst=settings.max_request_burst,
            setting="KINTSUGI_MAX_REQUESTS_PER_SECOND",
        ),
        failures=Buckets(
            rate=settings.max_failed_sign_ins_per_minute / 60,
            burst=settings.max_failed_sign_ins_per_minute,
            setting="KINTSUGI_MAX_FAILED_SIGN_INS_PER_MINUTE",
        ),
        noted=Buckets(rate=NOTED_PER_SECOND, burst=NOTED_AT_ONCE, setting=""),
        places=Places(settings.max_waiting_clients),
        is_enforced=are_always_needed(settings),
    )


def adopt_workers(settings: Settings, vault: Vault) -> None:
    """Accept the token that the workers of another scheduler's job use, where the settings name one.

    Raises:
        InvalidInputError: it is none by its form.
    """
    if settings.overlay_log_token is not None:
        new = NewToken(name="workers", scope=Scope.REPORT, job=settings.overlay_log_job)
        vault.adopt(settings.overlay_log_token.get_secret_value(), new)


def are_readable_on_the_way(settings: Settings) -> bool:
    """Whether what clients send goes beyond this machine unencrypted, as far as the service knows."""
    return not is_loopback(settings.host) and settings.tls_certificate is None and not settings.trusted_proxies


def are_always_needed(settings: Settings) -> bool:
    """Whether requests need tokens even where none was ever issued."""
    return settings.require_tokens == "always" or (settings.require_tokens == "auto" and not is_loopback(settings.host))


def tokens_are_needed(settings: Settings, vault: Vault) -> bool:
    """Whether requests need tokens: by the setting, beyond loopback, and wherever one was ever issued.

    Raises:
        InvalidInputError: they do, and no usable token is there.
    """
    if settings.require_tokens == "never" or not (are_always_needed(settings) or vault.has_any()):
        return False
    if not vault.has_usable():
        reason = "asks for tokens" if is_loopback(settings.host) else f"listens on {settings.host}, beyond this machine,"
        message = (
            f"the service {reason} and there is no usable token: make one with `kintsugi token create --name admin "
            "--scope administer` and the same database, listen on 127.0.0.1, or set KINTSUGI_REQUIRE_TOKENS=never "
            "where the network lets in nobody else"
        )
        raise InvalidInputError(message, field="require_tokens", value=settings.require_tokens)
    return True
