"""The tables: an append-only log and immutable decisions per job, and the documents they refer to.

What stands here is made by the migrations in `api/storage/migrations`; a test compares the two.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

NAMES = {
    "pk": "pk_%(table_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
}
"""Names of constraints: a migration must be able to name what it changes."""

METADATA = MetaData(naming_convention=NAMES)

DOCUMENTS = Table(
    "documents",
    METADATA,
    Column("digest", String(64), primary_key=True),
    Column("body", Text, nullable=False),
)
"""Profiles, clusters and settings, each stored once, named by the SHA-256 of its canonical JSON."""

JOBS = Table(
    "jobs",
    METADATA,
    Column("id", String(200), primary_key=True),
    Column("created_at", String(32), nullable=False),
    Column("request_digest", String(64), nullable=False),
    Column("profile", String(64), ForeignKey("documents.digest"), nullable=False),
    Column("cluster", String(64), ForeignKey("documents.digest"), nullable=False),
    Column("settings", String(64), ForeignKey("documents.digest"), nullable=False),
    Column("handling", String(64), ForeignKey("documents.digest"), nullable=False),
)

LOG = Table(
    "log",
    METADATA,
    Column("job", String(200), ForeignKey("jobs.id"), primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("kind", String(16), nullable=False),
    Column("event_id", String(200)),
    Column("body", Text, nullable=False),
    Column("received_at", String(32), nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("decided", Boolean, nullable=False),
    Column("deferred", Boolean, nullable=False),
    Column("problem", Text),
    Column("position", BigInteger, nullable=False, unique=True),
    UniqueConstraint("job", "event_id"),
)
"""Positions number the entries of all jobs from 1, without gaps, in the order of commits.

The primary key is the compare-and-swap: of two writers that saw the same last entry, one appends the next."""

DECISIONS = Table(
    "decisions",
    METADATA,
    Column("job", String(200), ForeignKey("jobs.id"), primary_key=True),
    Column("generation", BigInteger, primary_key=True, autoincrement=False),
    Column("number", BigInteger, nullable=False),
    Column("decided_at", String(32), nullable=False),
    Column("brief", LargeBinary, nullable=False),
    Column("account", LargeBinary, nullable=False),
    Column("snapshot", Text, nullable=False),
    Column("snapshot_digest", String(64), nullable=False),
    Column("planner_version", String(32), nullable=False),
)

STATES = Table(
    "states",
    METADATA,
    Column("job", String(200), ForeignKey("jobs.id"), primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("planner_version", String(32), nullable=False),
    Column("history", LargeBinary, nullable=False),
)
"""A job's history after some of its entries, so that a long log need not be folded from its beginning."""

DEADLINES = Table(
    "deadlines",
    METADATA,
    Column("job", String(200), ForeignKey("jobs.id"), primary_key=True),
    Column("due_at", String(32), nullable=False, index=True),
)
"""When the next thing is due for a job: what follows from its log, kept so that it need not be read."""

CONTINGENCIES = Table(
    "contingencies",
    METADATA,
    Column("job", String(200), ForeignKey("jobs.id"), primary_key=True),
    Column("fingerprint", String(64), primary_key=True),
    Column("planner_version", String(32), primary_key=True),
    Column("generation", BigInteger, nullable=False),
    Column("policy", String(32), nullable=False),
    Column("reason", Text, nullable=False),
    Column("brief", LargeBinary, nullable=False),
    Column("account", LargeBinary, nullable=False),
)
"""Decisions made ahead, by the snapshot they answer, in the form in which the decisions table takes them."""

KEYS = Table(
    "idempotency_keys",
    METADATA,
    Column("scope", String(200), primary_key=True),
    Column("key", String(300), primary_key=True),
    Column("request_digest", String(64), nullable=False),
    Column("job", String(200), nullable=False),
    Column("number", BigInteger, nullable=False),
)
"""Which write each `Idempotency-Key` stood for: the last log entry it made, or entry 0, the job's creation."""

WEBHOOKS = Table(
    "webhooks",
    METADATA,
    Column("job", String(200), ForeignKey("jobs.id"), primary_key=True),
    Column("id", String(100), primary_key=True),
    Column("created_at", String(32), nullable=False),
    Column("changed_at", String(32), nullable=False),
    Column("url", Text, nullable=False),
    Column("secret", String(100), nullable=False),
    Column("kinds", String(200), nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("number", BigInteger, nullable=False),
)
"""Who is told of a job's decisions, and up to which generation and log entry that was put into `deliveries`."""

DELIVERIES = Table(
    "deliveries",
    METADATA,
    Column("job", String(200), primary_key=True),
    Column("webhook", String(100), primary_key=True),
    Column("event", String(100), primary_key=True),
    Column("body", Text, nullable=False),
    Column("created_at", String(32), nullable=False),
    Column("status", String(16), nullable=False),
    Column("attempts", BigInteger, nullable=False),
    Column("due_at", String(32), nullable=False),
    Column("retry_until", String(32), nullable=False),
    Column("lease", String(32)),
    Column("leased_until", String(32)),
    Column("last_status", BigInteger),
    Column("last_error", Text),
    ForeignKeyConstraint(["job", "webhook"], ["webhooks.job", "webhooks.id"]),
    Index(None, "status", "due_at"),
)
"""News on their way to webhooks. A lease keeps a delivery for one process until it ends."""

TOKENS = Table(
    "tokens",
    METADATA,
    Column("id", String(32), primary_key=True),
    Column("digest", String(64), nullable=False, unique=True),
    Column("name", String(100), nullable=False),
    Column("scope", String(16), nullable=False),
    Column("job", String(200)),
    Column("created_at", String(32), nullable=False),
    Column("expires_at", String(32)),
    Column("revoked_at", String(32)),
)
"""Tokens by their public ids, with the SHA-256 of their secrets; a token's job need not be there yet."""

AUDIT = Table(
    "audit",
    METADATA,
    Column("number", BigInteger().with_variant(Integer(), "sqlite"), primary_key=True),
    Column("at", String(32), nullable=False),
    Column("token", String(32)),
    Column("name", String(100)),
    Column("address", String(100), nullable=False),
    Column("method", String(16), nullable=False),
    Column("route", String(200)),
    Column("job", String(200)),
    Column("status", Integer, nullable=False),
    Column("request", String(32), nullable=False),
    Index(None, "at"),
    Index(None, "job", "number"),
)
"""Who wrote what, and who was refused; rows are never changed, and deleted once they are old."""

RENDEZVOUS = Table(
    "rendezvous",
    METADATA,
    Column("run", String(200), primary_key=True),
    Column("key", String(200), primary_key=True),
    Column("value", LargeBinary, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("changed_at", String(32), nullable=False, index=True),
)
"""Values that torchrun's agents share while they meet; no job's."""

RENDEZVOUS_WRITES = Table(
    "rendezvous_writes",
    METADATA,
    Column("run", String(200), primary_key=True),
    Column("key", String(200), primary_key=True),
    Column("write", String(300), primary_key=True),
    Column("digest", String(64), nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("changed_at", String(32), nullable=False, index=True),
)
"""Which version the write of each `Idempotency-Key` made there, for as long as somebody may ask for it again."""

OVERLAY_LOG = Table(
    "overlay_log",
    METADATA,
    Column("job", String(200), primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("event_id", String(200), nullable=False),
    Column("body", Text, nullable=False),
    Column("at", String(32), nullable=False),
    Column("term", BigInteger, nullable=False),
    Column("generation", BigInteger, nullable=False),
    UniqueConstraint("job", "event_id"),
)
"""What agents told about overlays; a job's overlay needs no job that is planned here. The primary key is the compare-and-swap."""

OVERLAYS = Table(
    "overlays",
    METADATA,
    Column("job", String(200), primary_key=True),
    Column("number", BigInteger, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("body", Text, nullable=False),
)
"""The overlay after the last line of each log: what follows from it, kept so that it need not be played back."""

LEASES = Table(
    "leases",
    METADATA,
    Column("job", String(200), ForeignKey("jobs.id"), primary_key=True),
    Column("generation", BigInteger, primary_key=True, autoincrement=False),
    Column("holder", String(200), nullable=False),
    Column("agreement", Text, nullable=False),
    Column("granted_at", String(32), nullable=False),
)
"""What the workers of a job agreed on for each generation of theirs, where they said so. The primary key decides who was first."""

SIGNS = Table(
    "signs",
    METADATA,
    Column("process", String(32), primary_key=True),
    Column("about", String(32), primary_key=True),
    Column("told_at", Double, nullable=False),
    Column("period_seconds", Double, nullable=False),
    Column("body", Text, nullable=False),
)
"""Whom each process of the service has heard, by job: seconds before `told_at`, which is by a clock that all share."""

ENDINGS = Table(
    "endings",
    METADATA,
    Column("job", String(200), ForeignKey("jobs.id"), primary_key=True),
    Column("ended_at", String(32), nullable=False),
)
"""The jobs whose logs tell of their end: what follows from them, kept so that they need not be read."""

KEPT = (DOCUMENTS, LOG, DECISIONS, OVERLAY_LOG, LEASES, ENDINGS)
"""Tables whose rows are never changed or deleted: triggers refuse it."""
