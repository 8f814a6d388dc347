"""AdamW for parameters of half precision: their exact values and both moments are kept in fp32. Wider ones need no other copy.

That is the state that is usual for large models (Rajbhandari et al., ZeRO, section 3.1): per parameter 12 bytes here, beside
2 for the parameter and 2 for its gradient. Being optimizer state, the exact values move, and are written, as moments are.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from kintsugi.runtime.models import NamedParameters
from kintsugi.runtime.optimizer_state import put_back

MASTER = "master"
"""Key of a parameter's exact value."""


class MixedPrecisionAdamW(torch.optim.Optimizer):
    """AdamW in fp32 or wider (Loshchilov and Hutter, Decoupled weight decay regularization), rounded to the parameters' own type.

    Exact values begin as the parameters are. One gradient at a time is widened. Updates are fused on CUDA devices, for which
    counters lie beside their parameters, as the groups' `fused` tells those who load state.
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
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from the state that `state_dict` told; torch's own way would round it to the parameters' type."""
        super().load_state_dict(state_dict)
        put_back(self, state_dict)

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter] or self._begun(parameter)
        beta1, beta2 = group["betas"]
        exact = state.get(MASTER, parameter)
        adamw(
            [exact],
            [gradient.to(exact.dtype)],
            [state["exp_avg"]],
            [state["exp_avg_sq"]],
            [],
            [state["step"]],
            fused=parameter.is_cuda,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )
        if exact is not parameter:
            parameter.copy_(exact)

    def _begun(self, parameter: Tensor) -> dict[str, Tensor]:
        is_narrow = parameter.dtype.itemsize < torch.float32.itemsize
        exact = parameter.detach().float() if is_narrow else parameter
        state = {
            "exp_avg": torch.zeros_like(exact),
            "exp_avg_sq": torch.zeros_like(exact),
            "step": torch.zeros((), device=parameter.device),
        }
        if is_narrow:
            state[MASTER] = exact
        self.state[parameter] = state
        return state


def mixed_precision_adamw(parameters: NamedParameters) -> torch.optim.Optimizer:
    """The optimizer with its defaults, as a training job takes it; weight decay on matrices alone."""
    matrices = [parameter for _, parameter in parameters if parameter.ndim >= 2]
    others = [parameter for _, parameter in parameters if parameter.ndim < 2]
    groups: list[dict[str, Any]] = [{"params": matrices}, {"params": others, "weight_decay": 0.0}]
    return MixedPrecisionAdamW([group for group in groups if group["params"]])
