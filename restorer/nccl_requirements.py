"""What NCCL needs before it can be used: an environment, a build of torch, and a device for each worker."""

import os
from collections.abc import Sequence

import torch
import torch.distributed as dist

from kintsugi.core.errors import InvalidInputError
from restorer.gloo import Store

ENVIRONMENT = {
    "TORCH_NCCL_BLOCKING_WAIT": "1",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING": "0",
    "NCCL_RUNTIME_CONNECT": "0",
    "NCCL_LAUNCH_ORDER_IMPLICIT": "0",
    "CUDA_DEVICE_MAX_CONNECTIONS": "32",
    "CUDA_LAUNCH_BLOCKING": "0",
    "CUDA_MODULE_LOADING": "EAGER",
}
"""What torch, NCCL and CUDA must read when they start.

Receives wait on the device for what peers send only once this worker has computed. So they must hold up neither other groups
(in the order in which the host began them; with so many queues they seldom do in theirs) nor the host: not until a kernel is
over, nor until the device is idle, for which CUDA waits to load a kernel that is used for the first time.
"""

SHARING = "NCCL_MULTI_RANK_GPU_ENABLE"
"""Set to 1 it allows several workers on one device, from NCCL 2.30 on."""
SHARING_VERSION = (2, 30)


def prepare_environment() -> None:
    """Set what must be set before this process first uses CUDA.

    Raises:
        InvalidInputError: it is set to something else.
    """
    for name, value in ENVIRONMENT.items():
        present = os.environ.setdefault(name, value)
        if present != value:
            raise InvalidInputError(f"must be {value} for NCCL; unset it, or take transport='gloo'", field=name, value=present)


def require_nccl(device: torch.device) -> None:
    """Require that tensors on a device can travel by NCCL.

    Raises:
        InvalidInputError: they cannot.
    """
    if device.type != "cuda":
        why = f"carries tensors between CUDA devices, and the job computes on {device}; give it device='cuda'"
    elif not dist.is_nccl_available():
        why = "is not part of this build of torch; install one that has it"
    else:
        return
    raise InvalidInputError(f"{why}, or take transport='gloo'", field="transport", value="nccl")


def numbered(device: torch.device) -> torch.device:
    """A CUDA device with its index; the current one where it has none."""
    return torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)


def may_share_devices() -> bool:
    """Whether several workers can be on one device."""
    return os.environ.get(SHARING) == "1" and torch.cuda.nccl.version() >= SHARING_VERSION


def require_own_device(store: Store, prefix: str, worker: str, members: Sequence[str], device: str) -> None:
    """Require that no other member has the same device; tells the others this worker's, and waits until all have told theirs.

    Raises:
        InvalidInputError: another one has.
    """
    store.set(f"{prefix}/{worker}", device)
    for member in members:
        if member != worker and store.get(f"{prefix}/{member}").decode() == device:
            raise InvalidInputError(
                f"needs a device for each worker, and {worker} and {member} share {device}; "
                f"give each its own in devices, or take transport='gloo', under which workers share devices",
                field="transport",
                value="nccl",
            )
