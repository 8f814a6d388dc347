"""The service's settings, from arguments or `KINTSUGI_` environment variables."""

import json
import os
from collections.abc import Mapping
from difflib import get_close_matches
from ipaddress import IPv4Network, IPv6Network, ip_interface
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, HttpUrl, SecretStr, TypeAdapter, ValidationError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from api.texts import advice
from kintsugi.core.cluster import MOST_WORKERS
from kintsugi.core.errors import InvalidInputError
from planner.contingency import PAIR_WORK

PREFIX = "KINTSUGI_"
ALIKE = 0.9
"""How similar to a setting's name (1: equal) the name of a variable is that was meant for it."""


def settings_of(**given: Any) -> "Settings":
    """The settings that are given, not None, and those of the environment.

    Raises:
        InvalidInputError: one cannot be, or a variable is empty, or no setting but nearly one; its field is the name of the
            argument, or of the variable.
    """
    given = {name: value for name, value in given.items() if value is not None}
    _refuse_unknown(os.environ)
    _refuse_empty(os.environ)
    try:
        return Settings(**given)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        field = name if name in given else f"{PREFIX}{name.upper()}"
        reason = first.get("ctx", {}).get("error", advice(first["msg"]))  # an error of our own as it is, without pydantic's words
        raise InvalidInputError(str(reason), field=field, value=first["input"]) from error


def _refuse_unknown(environment: Mapping[str, str]) -> None:
    """Refuse what looks like a setting that was misspelt: it would be ignored without a word.

    Raises:
        InvalidInputError: a variable is no setting, but nearly one.
    """
    known = [f"{PREFIX}{name.upper()}" for name in Settings.model_fields]
    for name in environment:
        if name.startswith(PREFIX) and name not in known and (meant := get_close_matches(name, known, 1, ALIKE)):
            raise InvalidInputError(f"is no setting of the service; {meant[0]} is one", field=name)  # its value may be a secret


def _refuse_empty(environment: Mapping[str, str]) -> None:
    """Refuse what was set to nothing, as templates leave it: a path would mean the working directory, a host every address.

    Raises:
        InvalidInputError: a setting's variable is empty.
    """
    for name in Settings.model_fields:
        variable = f"{PREFIX}{name.upper()}"
        if environment.get(variable) == "":
            raise InvalidInputError("is empty; give it a value, or unset it for the default", field=variable)


def _networks(example: str) -> BeforeValidator:
    """Networks from a sequence, or from the text of a JSON list such as `example`."""

    def read(given: object) -> tuple[IPv4Network | IPv6Network, ...]:
        try:
            items = json.loads(given) if isinstance(given, str) else given
        except ValueError:
            items = None
        if not isinstance(items, list | tuple):
            raise ValueError(f"must be a JSON list of networks, such as {example}")
        return tuple(_network(str(item), example) for item in items)

    return BeforeValidator(read)


def _network(text: str, example: str) -> IPv4Network | IPv6Network:
    try:
        interface = ip_interface(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is no network; write a JSON list such as {example}") from error
    address, network = interface.ip, interface.network
    if address != network.network_address:
        message = f"{text} has bits beyond its network; write {network} for all of it, {address}/{address.max_prefixlen} for one"
        raise ValueError(message)
    return network


def _http(given: str) -> str:
    try:
        TypeAdapter(HttpUrl).validate_python(given)
    except ValidationError as error:
        raise ValueError("must be an HTTP address such as http://127.0.0.1:4318/v1/traces") from error
    return given


Proxies = Annotated[tuple[IPv4Network | IPv6Network, ...], NoDecode, _networks('["10.0.0.5/32"]')]
Networks = Annotated[tuple[IPv4Network | IPv6Network, ...], NoDecode, _networks('["10.0.0.0/8"]')]


class Settings(BaseSettings):
    """Every setting of the service."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", use_attribute_docstrings=True, frozen=True)

    database_url: str = "sqlite:///kintsugi.sqlite3"
    """SQLAlchemy URL of the database; by default a SQLite file in the working directory."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(default=8000, ge=0, le=65_535)
    """Port to listen on; 0 takes a free one."""
    max_body_bytes: int = Field(default=16_000_000, ge=1_000)
    """Larger request bodies are refused without being read."""
    max_wait_seconds: float = Field(default=60.0, gt=0, le=3_600)
    """Longest wait for a newer plan."""
    stream_heartbeat_seconds: float = Field(default=15.0, gt=0, le=3_600)
    """Longest silence on a stream of server-sent events."""
    overlay_timeout_seconds: float = Field(default=10.0, ge=0.1, le=3_600)
    """Silence after which a worker of an overlay counts as failed."""
    overlay_log: Path | None = None
    """Copy of another scheduler's log (JSON lines), played back at the start: this one goes on in its place."""
    overlay_log_job: str | None = None
    """The job whose log that is."""
    overlay_log_token: SecretStr | None = None
    """Token that the workers of that job use: good here, too, to report on it alone."""
    overlay_synchronization: str | None = None
    """Function that chooses the tree or ring over which an overlay reduces, as module:function; null: the one predicted fastest."""
    max_planning_threads: int = Field(default=4, ge=1, le=256)
    """Decisions that are computed at the same time, and as many of jobs whose searches may be long."""
    max_study_threads: int = Field(default=2, ge=1, le=256)
    """Estimates, what-if studies and simulations that are computed at the same time; no job's plan waits for one."""
    planning_processes: int = Field(default=2, ge=0, le=256)
    """Processes that search for plans, begun once searches meet, or may be long; with 0 the service makes them all."""
    plans_ahead: bool = True
    """Whether plans for the next losses are made in the background, after every decision and every plan that is applied."""
    pair_work: int = Field(default=PAIR_WORK, ge=0)
    """Workers that pairs of losses may be planned for, summed over the pairs; 0 plans for single losses alone."""
    max_simulation_seconds: float = Field(default=10.0, gt=0, le=3_600)
    """Longest simulation that the service carries out."""
    require_tokens: Literal["auto", "always", "never"] = "auto"
    """Whether requests need a bearer token; `auto`: beyond loopback, and on loopback once a token was ever issued."""
    tls_certificate: Path | None = None
    """PEM file of the certificate, with those between it and its authority; the service then speaks HTTPS alone."""
    tls_key: Path | None = None
    """PEM file of the certificate's private key, without a password."""
    trusted_proxies: Proxies = ()
    """Proxies such as `["10.0.0.5/32"]` whose `X-Forwarded-For` and `X-Forwarded-Proto` are believed; nobody else's are."""
    sign_in_hours: float = Field(default=12.0, gt=0, le=8_760)
    """How long a browser stays signed in to the dashboard."""
    max_requests_per_second: float = Field(default=2_000.0, ge=0.001)
    """Requests of one token, or of one address where no token is asked for; more are answered with 429."""
    max_request_burst: float = Field(default=10_000.0, ge=1)
    """Requests that one of them may send at once after a silence."""
    max_failed_sign_ins_per_minute: float = Field(default=60.0, ge=1)
    """Requests of one address without a usable token that are answered with 401; more are answered with 429."""
    max_jobs: int = Field(default=10_000, ge=1)
    """Jobs that go on; new ones are refused beyond. Who says that a job ended makes room."""
    max_workers_per_job: int = Field(default=MOST_WORKERS, ge=1)
    """Workers that a job may begin with, or come to know as they join."""
    max_waiting_clients: int = Field(default=10_000, ge=1)
    """Clients that listen to streams, or wait for plans, events or reports, at the same time; more are answered with 429.

    Where tokens are asked for, three quarters of them at most with the same token.
    """
    keep_audit_days: int = Field(default=400, ge=1, le=36_500)
    """How long the audit log remembers."""
    webhook_networks: Networks = ()
    """Private networks that webhooks may be sent to, such as `["10.0.0.0/8"]`; link-local addresses never are."""
    webhook_timeout_seconds: float = Field(default=10.0, gt=0, le=60)
    """Longest wait for a webhook's receiver."""
    webhook_first_retry_seconds: float = Field(default=1.0, gt=0, le=600)
    """Pause before a webhook is tried again; each later pause is twice as long, up to ten minutes."""
    webhook_retry_seconds: float = Field(default=86_400.0, ge=0, le=2_592_000)
    """How long a delivery is tried before it is given up."""
    webhook_keep_seconds: float = Field(default=604_800.0, gt=0, le=3_153_600_000)
    """How long deliveries that were made or given up are shown."""
    shutdown_seconds: int = Field(default=10, ge=1, le=3_600)
    """How long a stopping service lets requests finish."""
    otel_endpoint: Annotated[str, AfterValidator(_http)] | None = None
    """Where OpenTelemetry spans go, OTLP over HTTP, such as `http://127.0.0.1:4318/v1/traces`; null makes none."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe message that is logged."""
    log_format: Literal["console", "json"] = "console"
    """Lines for people, or one JSON object per line."""
