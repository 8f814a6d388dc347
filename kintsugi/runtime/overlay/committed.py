"""What a reduction came to, and the ways in which a worker can fall out of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from kintsugi.core.errors import ConflictError
from kintsugi.runtime.overlay.reduction import Vector


class Sum(NamedTuple):
    """Which reduction: where all who had one are gone, those that are left sum that number again, in a later attempt."""

    number: int
    """Of all reductions of the job."""
    attempt: int
    """The overlay's restarts when it was summed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """A reduction that is over: every worker holds the same mean, or will."""

    which: Sum
    vector: Vector | None
    """The mean; none where nobody added anything."""
    weights: Mapping[str, float]
    """Of the workers whose gradients are in it."""
    agreed: Mapping[str, Any] | None
    """The overlay that takes effect after it, as a document; none where it is the same as before."""

    @property
    def number(self) -> int:
        """Of all reductions of the job."""
        return self.which.number


class LostTrackError(ConflictError):
    """This worker missed reductions that nobody can tell it any more: it has to fetch the state anew."""


class GivenUpError(ConflictError):
    """The others go on without this worker; a new `Coordinator` joins again."""
