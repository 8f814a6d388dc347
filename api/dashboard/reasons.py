"""Why a plan won: every alternative with its numbers beside the winner's."""

from dataclasses import dataclass

from api.dashboard.scene import Scene
from kintsugi.core.decision import Alternative, Decision, Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A policy that was considered."""

    alternative: Alternative
    is_chosen: bool
    peak_memory_bytes: int | None
    """The largest of any worker."""
    charged_seconds: float | None
    """The transition, with what the next failure is expected to cost more."""
    share: float
    """Charged goodput against the best, 0..1: the length of its bar."""

    @property
    def estimate(self) -> Estimate | None:
        """Its price; null where it is impossible."""
        return self.alternative.estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """All options, the winner first, then by charged goodput; impossible ones last."""

    options: tuple[Option, ...]
    mtbf_seconds: float
    """That was reckoned with."""
    memory_limit_bytes: int


def choice_of(scene: Scene) -> Choice:
    """The options of a scene's decision."""
    decision = scene.decision
    best = max((a.charged_goodput_samples_per_second or 0.0 for a in decision.alternatives), default=0.0)
    options = [_option(alternative, decision, best) for alternative in decision.alternatives]
    options.sort(key=lambda option: (not option.is_chosen, option.estimate is None, -option.share))
    return Choice(
        options=tuple(options),
        mtbf_seconds=scene.settings.mtbf_seconds if decision.mtbf_seconds is None else decision.mtbf_seconds,
        memory_limit_bytes=scene.profile.device.memory_bytes,
    )


def _option(alternative: Alternative, decision: Decision, best: float) -> Option:
    price = alternative.estimate
    return Option(
        alternative=alternative,
        is_chosen=alternative.feasible and alternative.policy is decision.policy,
        peak_memory_bytes=None if price is None else max(stage.peak_memory_bytes for stage in price.stages),
        charged_seconds=None if price is None else price.reconfiguration_seconds + price.expected_restart_seconds,
        share=(alternative.charged_goodput_samples_per_second or 0.0) / best if best else 0.0,
    )
