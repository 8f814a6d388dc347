"""That all holders of a layer begin with the same values: nothing would bring together later on what begins apart."""

from collections.abc import Sequence

import torch
from torch import Tensor

from kintsugi.core.decision import StateKind
from kintsugi.core.errors import InvalidInputError
from kintsugi.core.plan import Plan
from kintsugi.runtime.models import TrainingJob
from kintsugi.runtime.workers.state import ModelState
from restorer.groups import Groups

_LIMB_BITS, _NUM_LIMBS = 20, 3
"""Of a digest. Squares of limbs, added up over 8,192 holders, are exact in 64-bit floating point."""
_WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Types of whole numbers by their bytes."""


def require_alike(job: TrainingJob, state: ModelState, plan: Plan, groups: Groups) -> None:
    """Require that the layers held here are what they are on their other holders; all workers of the plan ask at once.

    Numbers are equal where, and only where, their squares add up to the square of their sum over how many they are.

    Raises:
        InvalidInputError: with the first layer that is not, on all workers alike.
        CommunicationError: a worker is gone, or the attempt was called off.
    """
    limbs = torch.zeros(len(job.layers), _NUM_LIMBS, dtype=torch.float64)
    for layer in state.modules:
        digest = digest_of([value for value in state.export(layer, StateKind.PARAMETER).values() if isinstance(value, Tensor)])
        limbs[layer] = torch.tensor([digest >> _LIMB_BITS * limb & (1 << _LIMB_BITS) - 1 for limb in range(_NUM_LIMBS)])
    sums = torch.stack([limbs, limbs.square()])
    groups.all_reduce(sums, plan.workers)
    for layer, holders in enumerate(plan.holders):
        for total, squares in sums[:, layer].T.tolist():
            if len(holders) * int(squares) != int(total) ** 2:
                raise _apart(job.layers[layer].name)


def digest_of(tensors: Sequence[Tensor]) -> int:
    """Of all bits of some tensors, in 60 bits: for what differs by chance, not on purpose. Computed where they are."""
    digest = 0
    for tensor in tensors:
        bits = tensor.detach().contiguous().reshape(-1).view(_WHOLE[tensor.element_size()])
        digest = digest * 6364136223846793005 + int(bits.sum(dtype=torch.int64))
    return digest % (1 << _LIMB_BITS * _NUM_LIMBS)


def _apart(layer: str) -> InvalidInputError:
    return InvalidInputError(
        f"layer {layer!r} does not begin with the same values on all of its workers: draw them from the generators of torch, "
        "Python or NumPy, which are seeded before it is built, and leave no memory as it comes (torch.empty)",
        field="layers",
        value=layer,
    )
