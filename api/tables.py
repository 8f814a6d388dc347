"""The tables: an append-only log and immutable decisions per job, and the documents they refer to."""

from sqlalchemy import Boolean, Column, ForeignKey, Integer, LargeBinary, MetaData, String, Table, Text, UniqueConstraint

METADATA = MetaData()

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
)

LOG = Table(
    "log",
    METADATA,
    Column("job", String(200), ForeignKey("jobs.id"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("kind", String(16), nullable=False),
    Column("event_id", String(200)),
    Column("body", Text, nullable=False),
    Column("received_at", String(32), nullable=False),
    Column("generation", Integer, nullable=False),
    Column("decided", Boolean, nullable=False),
    Column("problem", Text),
    UniqueConstraint("job", "event_id"),
)
"""The primary key is the compare-and-swap: of two writers that saw the same last entry, one appends the next."""

DECISIONS = Table(
    "decisions",
    METADATA,
    Column("job", String(200), ForeignKey("jobs.id"), primary_key=True),
    Column("generation", Integer, primary_key=True, autoincrement=False),
    Column("number", Integer, nullable=False),
    Column("decided_at", String(32), nullable=False),
    Column("brief", LargeBinary, nullable=False),
    Column("account", LargeBinary, nullable=False),
    Column("snapshot", Text, nullable=False),
    Column("snapshot_digest", String(64), nullable=False),
    Column("planner_version", String(32), nullable=False),
)

CONTINGENCIES = Table(
    "contingencies",
    METADATA,
    Column("job", String(200), ForeignKey("jobs.id"), primary_key=True),
    Column("fingerprint", String(64), primary_key=True),
    Column("planner_version", String(32), primary_key=True),
    Column("generation", Integer, nullable=False),
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
    Column("key", String(200), primary_key=True),
    Column("request_digest", String(64), nullable=False),
    Column("job", String(200), nullable=False),
    Column("number", Integer, nullable=False),
)
"""Which write each `Idempotency-Key` stood for: the last log entry it made, or entry 0, the job's creation."""
