"""AdamW for parameters of half precision: their exact values and both moments are kept in fp32. Wider ones need no other copy.

That is the state that is usual for large models (Rajbhandari et al., ZeRO, section 3.1): per parameter 12 bytes here, beside
2 for the parameter and 2 for its gradient. Being optimizer state, the exact values move, and are written, as moments are.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from kintsugi.runtime.models import NamedParameters
from kintsugi.runtime.optimizer_state import put_back

MASTER = "master"
"""Key of a parameter's exact value."""
_FEW = 2**22
"""Numbers that are widened at once where the largest parameter has fewer: 16 MiB. A processor is slower with more, which its
allocator takes from the system anew each time."""


class MixedPrecisionAdamW(torch.optim.Optimizer):
    """AdamW in fp32 or wider (Loshchilov and Hutter, Decoupled weight decay regularization), rounded to the parameters' own type.

    Exact values begin as the parameters are. Gradients are widened, and parameters updated, as many at a time as take no more
    memory for it than the largest one, or 16 MiB: a device is given a few operations for a layer, not some for every parameter.
    The update is torch's fused one, for which counters lie beside their parameters, as the groups' `fused` tells those who load
    state.
    """

    def __init__(
        self,
        parameters: Any,
        *,
        lr: float = 3e-4,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.1,
    ) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "fused": True})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient.

        Args:
            closure: not taken; the loss was computed on other workers.
        """
        assert closure is None
        groups = [[own for own in group["params"] if own.grad is not None] for group in self.param_groups]
        most = max([_FEW, *(_widened_numbers(own) for present in groups for own in present)])
        for group, present in zip(self.param_groups, groups, strict=True):
            for parameters in _portions(present, most):
                self._update(parameters, group)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from the state that `state_dict` told; torch's own way would round it to the parameters' type."""
        super().load_state_dict(state_dict)
        put_back(self, state_dict)

    def _update(self, parameters: Sequence[Tensor], group: dict[str, Any]) -> None:
        states = [self.state[parameter] or self._begun(parameter) for parameter in parameters]
        exact = [state.get(MASTER, parameter) for state, parameter in zip(states, parameters, strict=True)]
        beta1, beta2 = group["betas"]
        adamw(
            exact,
            _widened(parameters, exact),
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=True,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )
        _copy_each((own, value) for own, value in zip(parameters, exact, strict=True) if own is not value)

    def _begun(self, parameter: Tensor) -> dict[str, Tensor]:
        exact = parameter.detach().float() if _is_narrow(parameter) else parameter
        state = {
            "exp_avg": torch.zeros_like(exact),
            "exp_avg_sq": torch.zeros_like(exact),
            "step": torch.zeros((), device=parameter.device),
        }
        if exact is not parameter:
            state[MASTER] = exact
        self.state[parameter] = state
        return state


def mixed_precision_adamw(parameters: NamedParameters) -> torch.optim.Optimizer:
    """The optimizer with its defaults, as a training job takes it; weight decay on matrices alone."""
    matrices = [parameter for _, parameter in parameters if parameter.ndim >= 2]
    others = [parameter for _, parameter in parameters if parameter.ndim < 2]
    groups: list[dict[str, Any]] = [{"params": matrices}, {"params": others, "weight_decay": 0.0}]
    return MixedPrecisionAdamW([group for group in groups if group["params"]])


def _is_narrow(parameter: Tensor) -> bool:
    return parameter.dtype.itemsize < torch.float32.itemsize


def _widened_numbers(parameter: Tensor) -> int:
    """Of its gradient, for the time of its update."""
    return parameter.numel() if _is_narrow(parameter) else 0


def _portions(parameters: Iterable[Tensor], most: int) -> Iterator[list[Tensor]]:
    """All parameters in their order, as many of one type at a time as widen at most so many numbers together."""
    portion: list[Tensor] = []
    free = most
    for parameter in parameters:
        needed = _widened_numbers(parameter)
        if portion and (needed > free or parameter.dtype != portion[0].dtype):
            yield portion
            portion, free = [], most
        portion.append(parameter)
        free -= needed
    if portion:
        yield portion


def _widened(parameters: Sequence[Tensor], exact: Sequence[Tensor]) -> list[Tensor]:
    """Gradients in the types of the exact values; those that are so already as they are."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    wide = [own if own.dtype == value.dtype else torch.empty_like(value) for own, value in zip(gradients, exact, strict=True)]
    _copy_each((to, own) for to, own in zip(wide, gradients, strict=True) if to is not own)
    return wide


def _copy_each(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Into the first of each pair from its second, all at once."""
    if pairs := list(pairs):
        torch._foreach_copy_([to for to, _ in pairs], [own for _, own in pairs])
