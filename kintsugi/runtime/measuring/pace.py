"""What layers take in a model where a host gives a device what to do, and either of them may be the slower one."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from kintsugi.runtime.measuring.sweeper import KINDS, Samples

Piece = tuple[float, float]
"""What the host takes to give it to the device, and the device to do it, given early enough; in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSeconds:
    """One layer's."""

    forward: float
    backward: float
    backward_input: float
    optimizer: float
    """Norm and update, and what a step's first micro-batch takes longer than others."""
    accumulation: float


def layer_seconds(samples: Sequence[Samples]) -> list[LayerSeconds]:
    """What every layer takes among all others of its model, by medians. Shape [layers].

    A step's micro-batches and norms follow each other with the host as far ahead of the device as it has come by then. Both begin
    with the updates, for which the host waits, and with the first micro-batch at the same time; what that takes longer is theirs.

    Args:
        samples: of all layers of a model, in their order. Shape [layers].
    """
    pieces = {kind: [_piece(sample, kind) for sample in samples] for kind in KINDS}
    microbatch = pieces["forward"] + pieces["backward"][::-1]
    first, _ = paced(_firsts(samples, "forward") + _firsts(samples, "backward")[::-1])
    _, lag = paced(microbatch)
    passes, after = paced(microbatch, lag)
    norms, _ = paced(pieces["norm"], after)
    updates, _ = paced(pieces["update"])
    parts, _ = paced(pieces["forward"] + pieces["backward_input"][::-1], lag)
    accumulations, _ = paced(pieces["accumulation"], lag)
    return [
        LayerSeconds(
            forward=passes[index],
            backward=passes[-1 - index],
            backward_input=parts[-1 - index],
            optimizer=max(
                norms[index] + updates[index] + first[index] + first[-1 - index] - passes[index] - passes[-1 - index], 0.0
            ),
            accumulation=accumulations[index],
        )
        for index in range(len(samples))
    ]


def paced(pieces: Sequence[Piece], lag: float = 0.0) -> tuple[list[float], float]:
    """How much later each piece is done than the one before, in seconds, and the device's lag behind the host at the end.

    A device is done with a piece once it is done with the one before and did it, and not before the host has given all of it.

    Args:
        pieces: one after the other.
        lag: by how much the device is behind the host at the beginning.
    """
    taken = []
    for giving, doing in pieces:
        taken.append(seconds := max(doing, giving - lag))
        lag += seconds - giving
    return taken, lag


def _firsts(samples: Sequence[Samples], kind: str) -> list[Piece]:
    """Passes of first micro-batches; a host that waits within one for its device waits for what lets it lead there, too."""
    pairs = [(_piece(sample, f"first_{kind}"), _piece(sample, kind)) for sample in samples]
    return [(min(first[0], later[0]), first[1]) for first, later in pairs]


def _piece(sample: Samples, kind: str) -> Piece:
    return statistics.median(getattr(sample.host, kind)), statistics.median(getattr(sample.device, kind))
