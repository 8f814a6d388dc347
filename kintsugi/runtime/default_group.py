"""torch.distributed's default group, as plain scripts make it."""

import torch.distributed as dist

from kintsugi.core.errors import InvalidInputError


def require_sums_in_host_memory() -> None:
    """Refuse a default group, which must be there, that would fail at its first sum of tensors in host memory, as NCCL's alone.

    Raises:
        InvalidInputError: it has no backend for them.
    """
    backends = dist.get_backend_config()
    if "cpu" not in {pair.partition(":")[0] for pair in backends.split(",")}:
        raise InvalidInputError(
            f"{backends} sums nothing in host memory; call torch.distributed.init_process_group('cpu:gloo,cuda:nccl')",
            field="backend",
            value=backends,
        )
