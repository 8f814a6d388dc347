"""The service's settings, from arguments or `KINTSUGI_` environment variables."""

from ipaddress import IPv4Network, IPv6Network
from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from planner.contingency import PAIR_WORK


class Settings(BaseSettings):
    """Every setting of the service."""

    model_config = SettingsConfigDict(env_prefix="KINTSUGI_", extra="forbid", use_attribute_docstrings=True, frozen=True)

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
    max_planning_threads: int = Field(default=4, ge=1, le=256)
    """Decisions that are computed at the same time."""
    plans_ahead: bool = True
    """Whether plans for the next losses are made in the background, after every decision and every plan that is applied."""
    pair_work: int = Field(default=PAIR_WORK, ge=0)
    """Workers that pairs of losses may be planned for, summed over the pairs; 0 plans for single losses alone."""
    max_simulation_seconds: float = Field(default=10.0, gt=0, le=3_600)
    """Longest simulation that the service carries out."""
    webhook_networks: tuple[IPv4Network | IPv6Network, ...] = ()
    """Private networks that webhooks may be sent to, such as `["10.0.0.0/8"]`; link-local addresses never are."""
    webhook_timeout_seconds: float = Field(default=10.0, gt=0, le=60)
    """Longest wait for a webhook's receiver."""
    webhook_first_retry_seconds: float = Field(default=1.0, gt=0, le=600)
    """Pause before a webhook is tried again; each later pause is twice as long, up to ten minutes."""
    webhook_retry_seconds: float = Field(default=86_400.0, ge=0, le=2_592_000)
    """How long a delivery is tried before it is given up."""
    webhook_keep_seconds: float = Field(default=604_800.0, gt=0)
    """How long deliveries that were made or given up are shown."""
    shutdown_seconds: int = Field(default=10, ge=1, le=3_600)
    """How long a stopping service lets requests finish."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe message that is logged."""
    log_format: Literal["console", "json"] = "console"
    """Lines for people, or one JSON object per line."""
