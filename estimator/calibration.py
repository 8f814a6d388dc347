"""Corrects a profile by steps that were measured: what layers take in a running job, and what messages cost its workers.

A profile is measured layer by layer, in a process that does nothing else. Workers do more: they collect samples, seed, wake up
for messages and share a machine. Three numbers stand for that, fitted to whole steps of earlier runs; they belong to the
machine, so plans, schedules and models that were never run are predicted with them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from scipy.optimize import least_squares

from estimator.estimate import estimate
from kintsugi.core import checks
from kintsugi.core.cluster import Cluster
from kintsugi.core.plan import Plan
from kintsugi.core.profile import LayerProfile, LinkCost, Profile

_ALPHA_UNIT, _BETA_UNIT = 1e-4, 1e-9
"""Seconds and seconds per byte, so that the solver's numbers are of one size."""
_LEAST = (0.5, 1.0, 1.0)
_MOST = (2.0, 1e3, 1e3)
"""Of the solver's numbers; beyond these the profile is of another machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """A step that was run: its plan, the profile and cluster it is predicted from, and what it took."""

    plan: Plan
    profile: Profile
    cluster: Cluster
    iteration_seconds: float

    def __post_init__(self) -> None:
        checks.positive("iteration_seconds", self.iteration_seconds)

    def error_ratio(self, calibration: "Calibration | None" = None) -> float:
        """Estimated over measured, minus one; with or without a calibration."""
        profile = self.profile if calibration is None else calibration.applied_to(self.profile)
        return estimate(self.plan, profile, self.cluster).iteration_seconds / self.iteration_seconds - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What measured steps say beyond a profile."""

    compute_ratio: float = 1.0
    """Every pass takes this times what the profile says."""
    alpha_seconds: float = 0.0
    """On top of the latency of each of the profile's links."""
    beta_seconds_per_byte: float = 0.0
    """On top of each byte's time on the profile's links."""

    def applied_to(self, profile: Profile) -> Profile:
        """The profile as this machine runs it; links that a cluster states by itself are not touched."""
        network = profile.network
        return replace(
            profile,
            layers=tuple(self._layer(layer) for layer in profile.layers),
            network=replace(network, intra_host=self._link(network.intra_host), inter_host=self._link(network.inter_host)),
        )

    def _layer(self, layer: LayerProfile) -> LayerProfile:
        return replace(
            layer,
            forward_seconds=layer.forward_seconds * self.compute_ratio,
            backward_input_seconds=layer.backward_input_seconds * self.compute_ratio,
            backward_weight_seconds=layer.backward_weight_seconds * self.compute_ratio,
            accumulation_seconds=layer.accumulation_seconds * self.compute_ratio,
        )

    def _link(self, link: LinkCost) -> LinkCost:
        return LinkCost(
            alpha_seconds=link.alpha_seconds + self.alpha_seconds,
            beta_seconds_per_byte=link.beta_seconds_per_byte + self.beta_seconds_per_byte,
        )


def calibrate(steps: Sequence[MeasuredStep]) -> Calibration:
    """The calibration whose estimates are closest to `steps`: least squares of relative errors, within bounds.

    Steps of one worker fix the compute ratio, those with reductions or messages of few bytes the latency, those of many the
    rate; a number that no step depends on stays what the profile says. O(estimates), some tens of them per step.

    Raises:
        InvalidInputError: there are no steps.
    """
    checks.not_empty("steps", steps)

    def errors(point: Sequence[float]) -> list[float]:
        return [step.error_ratio(_at(point)) for step in steps]

    found = least_squares(errors, x0=(1.0, 1.5, 1.5), bounds=(_LEAST, _MOST), diff_step=1e-4, xtol=1e-10, ftol=1e-12, gtol=1e-12)
    return _at(found.x)


def _at(point: Sequence[float]) -> Calibration:
    """The calibration that the solver's numbers stand for: 1 changes nothing in each, so that steps of differences are alike."""
    ratio, alpha, beta = map(float, point)
    return Calibration(
        compute_ratio=ratio, alpha_seconds=(alpha - 1.0) * _ALPHA_UNIT, beta_seconds_per_byte=(beta - 1.0) * _BETA_UNIT
    )
