"""What a pipeline makes of its workers, but for their names."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Seat:
    """A stage with its worker, but for their names."""

    forward_seconds: float
    backward_seconds: float
    num_in_flight: int
    peak_memory_bytes: int
    busy_seconds: float
    """Of the worker, in all its stages."""


@dataclass(frozen=True, slots=True)
class Alike:
    """What pipelines have in common that hold the same layers on alike workers; by the worker's place."""

    pipeline_seconds: float
    stage_end_seconds: list[tuple[float, ...]]
    """End of the last pass through each of a worker's stages."""
    end_seconds: list[float]
    busy_seconds: float
    """Of all workers together."""
    update_seconds: float
    """The longest of a worker."""
    seats: list[Seat]
    """By stage."""
