"""Replicas as coordinators train them: small models, with every kind of optimizer."""

import torch
from torch import nn

from kintsugi.runtime.overlay.options import OverlayOptions
from kintsugi.runtime.overlay.trained import TrainedState


def network(dtype=torch.float32) -> nn.Module:
    """Convolution, normalisation with running statistics, and a tied pair."""
    model = nn.Sequential(nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), nn.Flatten(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16))
    model[5].weight = model[3].weight
    return model.to(dtype)


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9, dampening=0.1),
    "adam": lambda parameters: torch.optim.Adam(parameters, 0.01, amsgrad=True),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 0.01),
    "fused": lambda parameters: torch.optim.AdamW(parameters, 0.01, fused=True),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, 0.01, centered=True),
}


class Recent(torch.optim.Optimizer):
    """Steps with the mean of the last gradients, which it keeps in a list, and its settings in a dictionary with a tensor."""

    def __init__(self, parameters) -> None:
        super().__init__(parameters, {"rates": {"lr": torch.tensor(0.1)}})

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state["recent"] = [*state.get("recent", []), parameter.grad.clone()][-3:]
                state["seen"] = {"last": (parameter.grad.sum(), None), 3: [True]}
                parameter.sub_(group["rates"]["lr"] * torch.stack(state["recent"]).mean(0))


class Decay:
    """A schedule whose state is a tensor."""

    def __init__(self, optimizer) -> None:
        self.optimizer, self.factor = optimizer, torch.ones(1)

    def step(self) -> None:
        self.factor *= 0.5
        for group in self.optimizer.param_groups:
            group["rates"]["lr"].mul_(self.factor.item())

    def state_dict(self) -> dict:
        return {"factor": self.factor}

    def load_state_dict(self, state: dict) -> None:
        self.factor = state["factor"]


def trained(seed: int, kind: str, dtype=torch.float32, **options) -> TrainedState:
    torch.manual_seed(seed)
    model = network(dtype)
    if kind == "lists":
        optimizer = Recent(model.parameters())
        return TrainedState(model, optimizer, OverlayOptions(**options), schedules=[Decay(optimizer)])
    optimizer = OPTIMIZERS[kind](model.parameters())
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 2, 4])
    return TrainedState(model, optimizer, OverlayOptions(**options), schedules=[schedule])


def step(state: TrainedState, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(8, 2, 6, generator=generator).to(next(state.model.parameters()).dtype)
    state.model(inputs).float().square().mean().backward()
    state.apply(state.gathered(1.0).copy())
