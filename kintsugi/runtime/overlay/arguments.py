"""What a `Coordinator` is given, looked at before it waits for anybody."""

from collections.abc import Callable, Sequence

import torch
from torch import nn

from kintsugi.core import checks
from kintsugi.core.errors import InvalidInputError
from kintsugi.runtime.given import function, optimizer_of_model
from kintsugi.runtime.overlay.flat_state import Schedule


def require_trainable(
    model: nn.Module, optimizer: torch.optim.Optimizer, schedules: Sequence[Schedule], before_step: Callable[[], None]
) -> None:
    """Require what is trained to be what it should.

    Raises:
        InvalidInputError: something is of another kind, the optimizer has parameters that are not the model's, or a schedule is
            another optimizer's, which nobody steps.
    """
    checks.instance("model", model, nn.Module)
    checks.instance("optimizer", optimizer, torch.optim.Optimizer)
    optimizer_of_model(model.parameters(), optimizer)
    checks.instance("schedules", schedules, Sequence, hint="a list of schedules, such as [schedule]")
    for index, schedule in enumerate(schedules):
        if getattr(schedule, "optimizer", optimizer) is not optimizer:
            message = "is of another optimizer; make it of the one that is given here"
            raise InvalidInputError(message, field=f"schedules.{index}", value=type(schedule).__name__)
    function("before_step", before_step, hint="give a function without arguments")


def require_reachable(worker: str, neighbors: Sequence[str] | None, port: int, advertised: str | None, key: bytes) -> None:
    """Require names, addresses and a key that neighbours could find this worker by.

    Raises:
        InvalidInputError: one of them cannot be.
    """
    checks.port("port", port)
    checks.instance("key", key, bytes, hint="b'...', or a text's .encode()")
    if advertised is not None:
        checks.address("advertised", advertised)
    if neighbors is None:
        return
    if isinstance(neighbors, str):
        raise InvalidInputError("must be a list of names, such as ['clinic-a'], not a text", field="neighbors", value=neighbors)
    for index, neighbor in enumerate(neighbors):
        checks.name(f"neighbors.{index}", neighbor)
        if neighbor == worker:
            raise InvalidInputError("is this worker itself; name others", field=f"neighbors.{index}", value=neighbor)
