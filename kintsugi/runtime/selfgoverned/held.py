"""The plans that a worker holds for losses that have not happened, and what it does where it holds none: plan by itself."""

import threading
from collections.abc import Mapping
from dataclasses import replace

from kintsugi.core.decision import Decision
from kintsugi.core.errors import StateLostError
from kintsugi.core.job import Snapshot
from kintsugi.runtime.selfgoverned.packed import packed
from planner.contingency import fingerprint
from planner.replan import replan


class HeldPlans:
    """Packed decisions by the fingerprint of the snapshot that they answer; for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._generation = 0
        self._plans: dict[str, bytes] = {}

    def __len__(self) -> int:
        return len(self._plans)

    def hold(self, generation: int, plans: Mapping[str, bytes]) -> None:
        """Take in plans made ahead for what may happen to a generation; those for earlier ones are dropped."""
        with self._lock:
            if generation > self._generation:
                self._generation = generation
                self._plans.clear()
            if generation == self._generation:
                self._plans |= plans

    def answer(self, snapshot: Snapshot, *, is_untrained: bool) -> bytes:
        """The packed decision for a snapshot: the one that is held, or else the planner's.

        Args:
            snapshot: of what has happened.
            is_untrained: no step is committed: whatever is lost comes from the seed again.

        Raises:
            InfeasibleError: no plan exists for the workers that are left.
        """
        with self._lock:
            held = self._plans.get(fingerprint(snapshot))
        return held if held is not None else packed(decided(snapshot, is_untrained=is_untrained))


def decided(snapshot: Snapshot, *, is_untrained: bool) -> Decision:
    """The planner's decision.

    Raises:
        InfeasibleError: no plan exists for the workers that are left.
    """
    try:
        return replan(snapshot)
    except StateLostError:
        if not is_untrained:
            raise
        return replan(replace(snapshot, plan=None, stateless=()))
