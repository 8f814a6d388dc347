"""The first schema: jobs, their logs and decisions, and what is kept beside them."""

import sqlalchemy as sa
from alembic import op

from api.storage.migrations.keeping import keep

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

KEPT = ("documents", "log", "decisions", "overlay_log", "leases")
"""Tables whose rows are never changed or deleted."""


def upgrade() -> None:
    """Make all tables in an empty database."""
    _documents_and_jobs()
    _logs()
    _made_ahead()
    _keys()
    _webhooks()
    _rendezvous()
    _overlays()
    _leases()
    _access()
    for table in KEPT:
        keep(table)


def _documents_and_jobs() -> None:
    op.create_table(
        "documents",
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(200), primary_key=True),
        sa.Column("created_at", sa.String(32), nullable=False),
        sa.Column("request_digest", sa.String(64), nullable=False),
        sa.Column("profile", sa.String(64), sa.ForeignKey("documents.digest"), nullable=False),
        sa.Column("cluster", sa.String(64), sa.ForeignKey("documents.digest"), nullable=False),
        sa.Column("settings", sa.String(64), sa.ForeignKey("documents.digest"), nullable=False),
        sa.Column("handling", sa.String(64), sa.ForeignKey("documents.digest"), nullable=False),
    )


def _logs() -> None:
    op.create_table(
        "log",
        sa.Column("job", sa.String(200), sa.ForeignKey("jobs.id"), primary_key=True),
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("event_id", sa.String(200)),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("received_at", sa.String(32), nullable=False),
        sa.Column("generation", sa.BigInteger, nullable=False),
        sa.Column("decided", sa.Boolean, nullable=False),
        sa.Column("deferred", sa.Boolean, nullable=False),
        sa.Column("problem", sa.Text),
        sa.Column("position", sa.BigInteger, nullable=False, unique=True),
        sa.UniqueConstraint("job", "event_id"),
    )
    op.create_table(
        "decisions",
        sa.Column("job", sa.String(200), sa.ForeignKey("jobs.id"), primary_key=True),
        sa.Column("generation", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("decided_at", sa.String(32), nullable=False),
        sa.Column("brief", sa.LargeBinary, nullable=False),
        sa.Column("account", sa.LargeBinary, nullable=False),
        sa.Column("snapshot", sa.Text, nullable=False),
        sa.Column("snapshot_digest", sa.String(64), nullable=False),
        sa.Column("planner_version", sa.String(32), nullable=False),
    )
    op.create_table(
        "states",
        sa.Column("job", sa.String(200), sa.ForeignKey("jobs.id"), primary_key=True),
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("planner_version", sa.String(32), nullable=False),
        sa.Column("history", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "deadlines",
        sa.Column("job", sa.String(200), sa.ForeignKey("jobs.id"), primary_key=True),
        sa.Column("due_at", sa.String(32), nullable=False),
    )
    op.create_index("ix_deadlines_due_at", "deadlines", ["due_at"])


def _made_ahead() -> None:
    op.create_table(
        "contingencies",
        sa.Column("job", sa.String(200), sa.ForeignKey("jobs.id"), primary_key=True),
        sa.Column("fingerprint", sa.String(64), primary_key=True),
        sa.Column("planner_version", sa.String(32), primary_key=True),
        sa.Column("generation", sa.BigInteger, nullable=False),
        sa.Column("policy", sa.String(32), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("brief", sa.LargeBinary, nullable=False),
        sa.Column("account", sa.LargeBinary, nullable=False),
    )


def _keys() -> None:
    op.create_table(
        "idempotency_keys",
        sa.Column("scope", sa.String(200), primary_key=True),
        sa.Column("key", sa.String(300), primary_key=True),
        sa.Column("request_digest", sa.String(64), nullable=False),
        sa.Column("job", sa.String(200), nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
    )


def _webhooks() -> None:
    op.create_table(
        "webhooks",
        sa.Column("job", sa.String(200), sa.ForeignKey("jobs.id"), primary_key=True),
        sa.Column("id", sa.String(100), primary_key=True),
        sa.Column("created_at", sa.String(32), nullable=False),
        sa.Column("changed_at", sa.String(32), nullable=False),
        sa.Column("url", sa.Text, nullable=False),
        sa.Column("secret", sa.String(100), nullable=False),
        sa.Column("kinds", sa.String(200), nullable=False),
        sa.Column("generation", sa.BigInteger, nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "deliveries",
        sa.Column("job", sa.String(200), primary_key=True),
        sa.Column("webhook", sa.String(100), primary_key=True),
        sa.Column("event", sa.String(100), primary_key=True),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("created_at", sa.String(32), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("attempts", sa.BigInteger, nullable=False),
        sa.Column("due_at", sa.String(32), nullable=False),
        sa.Column("retry_until", sa.String(32), nullable=False),
        sa.Column("lease", sa.String(32)),
        sa.Column("leased_until", sa.String(32)),
        sa.Column("last_status", sa.BigInteger),
        sa.Column("last_error", sa.Text),
        sa.ForeignKeyConstraint(["job", "webhook"], ["webhooks.job", "webhooks.id"]),
        sa.Index(None, "status", "due_at"),
    )


def _access() -> None:
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("digest", sa.String(64), nullable=False, unique=True),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("scope", sa.String(16), nullable=False),
        sa.Column("job", sa.String(200)),
        sa.Column("created_at", sa.String(32), nullable=False),
        sa.Column("expires_at", sa.String(32)),
        sa.Column("revoked_at", sa.String(32)),
    )
    op.create_table(
        "audit",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
        sa.Column("at", sa.String(32), nullable=False),
        sa.Column("token", sa.String(32)),
        sa.Column("name", sa.String(100)),
        sa.Column("address", sa.String(100), nullable=False),
        sa.Column("method", sa.String(16), nullable=False),
        sa.Column("route", sa.String(200)),
        sa.Column("job", sa.String(200)),
        sa.Column("status", sa.Integer, nullable=False),
        sa.Column("request", sa.String(32), nullable=False),
    )
    op.create_index("ix_audit_at", "audit", ["at"])
    op.create_index("ix_audit_job_number", "audit", ["job", "number"])


def _rendezvous() -> None:
    op.create_table(
        "rendezvous",
        sa.Column("run", sa.String(200), primary_key=True),
        sa.Column("key", sa.String(200), primary_key=True),
        sa.Column("value", sa.LargeBinary, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("generation", sa.BigInteger, nullable=False),
        sa.Column("changed_at", sa.String(32), nullable=False, index=True),
    )


def _overlays() -> None:
    op.create_table(
        "overlay_log",
        sa.Column("job", sa.String(200), primary_key=True),
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("event_id", sa.String(200), nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("at", sa.String(32), nullable=False),
        sa.Column("term", sa.BigInteger, nullable=False),
        sa.Column("generation", sa.BigInteger, nullable=False),
        sa.UniqueConstraint("job", "event_id"),
    )
    op.create_table(
        "overlays",
        sa.Column("job", sa.String(200), primary_key=True),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("generation", sa.BigInteger, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )


def _leases() -> None:
    op.create_table(
        "leases",
        sa.Column("job", sa.String(200), sa.ForeignKey("jobs.id"), primary_key=True),
        sa.Column("generation", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("holder", sa.String(200), nullable=False),
        sa.Column("agreement", sa.Text, nullable=False),
        sa.Column("granted_at", sa.String(32), nullable=False),
    )
