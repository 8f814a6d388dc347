"""What is stored, as it is stored: jobs, decisions and the documents they refer to by digest."""

import hashlib
from dataclasses import dataclass

from api.storage.wording import Wording
from kintsugi.core import codec
from kintsugi.core.cluster import Cluster
from kintsugi.core.identity import kept_by_identity

CACHED_DOCUMENTS = 16
"""Texts of clusters kept in memory: a job's cluster is stored with every decision, and seldom another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A profile, a cluster or settings as canonical JSON, named by its SHA-256."""

    digest: str
    body: str

    @classmethod
    def of(cls, value: object) -> "Document":
        """The document of a noun."""
        body = codec.dumps(value)
        return cls(digest=hashlib.sha256(body.encode()).hexdigest(), body=body)


@kept_by_identity(CACHED_DOCUMENTS)
def cluster_document(cluster: Cluster) -> Document:
    """The document of a cluster, put into words once."""
    return Document.of(cluster)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredJob:
    """What a job was created with; profile, cluster, settings and handling by digest."""

    id: str
    created_at: str
    request_digest: str
    profile: str
    cluster: str
    settings: str
    handling: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Appointment:
    """How a job's next deadline moves with a write: RFC 3339, UTC; null where there is none."""

    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDecision:
    """A decision, and the snapshot it is a pure function of as canonical JSON."""

    generation: int
    number: int
    """Of the log entry that led to it; 0 for the job's creation."""
    decided_at: str
    wording: Wording
    snapshot: str
    """Profile, cluster, settings and plan by digest."""
    snapshot_digest: str
    planner_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteKey:
    """An `Idempotency-Key`, where it counts, and the digest of the request it came with."""

    scope: str
    key: str
    request_digest: str
