"""What the last life of a cell's job says of the state that was trained."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from kintsugi.core.codec import dumps
from kintsugi.matrix.record import Quality

OUTCOME = "outcome.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The trained state."""

    digest: str
    """SHA-256 over those of all layers' states: equal where two runs ended bitwise alike."""
    has_equal_replicas: bool
    """Whether all holders of every layer hold bitwise the same."""
    quality: Quality


def digest_of(digests: Mapping[int, Mapping[str, str]]) -> str:
    """One digest of all layers' states, from those of each by holder."""
    by_layer = {str(layer): sorted(set(holders.values())) for layer, holders in digests.items()}
    return hashlib.sha256(dumps(by_layer).encode()).hexdigest()
