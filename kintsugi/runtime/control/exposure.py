"""Layers that one worker alone holds, where no checkpoint brings them back: its loss ends the job."""

from kintsugi.core.errors import some
from kintsugi.core.logs import get_logger
from kintsugi.core.plan import Plan
from kintsugi.core.profile import Profile

_WAY_OUT = "dp=2 or more begins with two holders of every layer, run=... (not under a ring) writes checkpoints to go back to"


def tell_exposure(plan: Plan, profile: Profile, *, has_checkpoints: bool) -> None:
    """Warn where the loss of one worker of several would end the job."""
    lonely = [layer for layer, holders in enumerate(plan.holders) if len(holders) == 1]
    if has_checkpoints or not lonely or len(plan.workers) == 1:
        return
    get_logger("kintsugi.runtime").warning(
        "one loss may end the job: layers have one holder, and there are no checkpoints",
        layers=some([profile.layers[layer].name for layer in lonely]),
        holders=sorted({plan.holders[layer][0] for layer in lonely}),
        way_out=_WAY_OUT,
    )
