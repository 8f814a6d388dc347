"""What is stored, as it is stored: jobs, decisions and the documents they refer to by digest."""

import hashlib
from collections.abc import Hashable
from dataclasses import dataclass
from functools import lru_cache

from api.wording import Wording
from kintsugi.core import codec

CACHED_DOCUMENTS = 16
"""Texts of documents kept in memory: a job's cluster is stored with every decision, and seldom another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A profile, a cluster or settings as canonical JSON, named by its SHA-256."""

    digest: str
    body: str

    @classmethod
    def of(cls, value: Hashable) -> "Document":
        """The document of a noun."""
        return _document(value)


@lru_cache(CACHED_DOCUMENTS)
def _document(value: Hashable) -> Document:
    body = codec.dumps(value)
    return Document(digest=hashlib.sha256(body.encode()).hexdigest(), body=body)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredJob:
    """What a job was created with; profile, cluster and settings by digest."""

    id: str
    created_at: str
    request_digest: str
    profile: str
    cluster: str
    settings: str


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
