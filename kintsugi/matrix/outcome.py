"""What the last life of a cell's job says of the state that was trained."""

from collections.abc import Mapping
from dataclasses import dataclass

from kintsugi.core.codec import digest

OUTCOME = "outcome.json"
PARAMETERS = "parameters.pt"
"""What was trained; evaluated when the job has ended, so that no time of it is the job's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The trained state."""

    digest: str
    """SHA-256 over those of all layers' states: equal where two runs ended bitwise alike."""
    has_equal_replicas: bool
    """Whether all holders of every layer hold bitwise the same."""


def digest_of(digests: Mapping[int, Mapping[str, str]]) -> str:
    """One digest of all layers' states, from those of each by holder."""
    by_layer = {str(layer): sorted(set(holders.values())) for layer, holders in digests.items()}
    return digest(by_layer)
