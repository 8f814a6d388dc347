"""How far one run is from another: losses, parameters, replicas."""

from dataclasses import dataclass

from kintsugi.core.errors import InvalidInputError
from kintsugi.runtime.result import RunResult


@dataclass(frozen=True, slots=True)
class Difference:
    """Largest relative differences between two runs of one job."""

    loss_ratio: float
    """Over all steps, relative to the reference's loss."""
    parameter_ratio: float
    """Over all parameters, relative to the largest value in the same tensor of the reference."""
    has_equal_replicas: bool
    """Whether the struck run's replicas are bitwise equal."""

    def is_within(self, tolerance: float) -> bool:
        """Whether both are at most `tolerance` and replicas are equal."""
        return self.loss_ratio <= tolerance and self.parameter_ratio <= tolerance and self.has_equal_replicas


def difference(struck: RunResult, reference: RunResult) -> Difference:
    """Compare a run with the uninterrupted one.

    Raises:
        InvalidInputError: they are no runs of one job: other steps or other parameters.
    """
    if len(struck.losses) != len(reference.losses) or struck.parameters.keys() != reference.parameters.keys():
        raise InvalidInputError("must be runs of one job: as many steps and the same parameters", field="reference")
    losses = [abs(mine - other) / max(abs(other), 1e-300) for mine, other in zip(struck.losses, reference.losses, strict=True)]
    parameters = [
        float((value - reference.parameters[name]).abs().max() / reference.parameters[name].abs().max().clamp_min(1e-300))
        for name, value in struck.parameters.items()
        if value.numel()
    ]
    return Difference(max(losses), max(parameters, default=0.0), struck.has_equal_replicas)
