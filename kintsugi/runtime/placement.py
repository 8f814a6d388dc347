"""A device for each worker, where the transport asks for that."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import torch

from kintsugi.core.errors import InvalidInputError
from kintsugi.runtime.options import TransportKind, WorkerOptions
from restorer.nccl_requirements import may_share_devices, require_nccl


def placed(options: WorkerOptions, device: str, workers: Sequence[str], num_devices: int) -> WorkerOptions:
    """The options with a device of its own for each worker, under NCCL; as they are under any other transport.

    Args:
        options: what they say of a worker's device holds.
        device: of the job; without an index, workers get those that are left, in order.
        workers: of this host.
        num_devices: of this host.

    Raises:
        InvalidInputError: the job is for no such device, or two workers would share one.
    """
    if options.transport is not TransportKind.NCCL:
        return options
    require_nccl(torch.device(device))
    given = {worker: options.devices[worker] for worker in workers if worker in options.devices}
    free = [f"cuda:{index}" for index in range(num_devices) if f"cuda:{index}" not in given.values()]
    others = [worker for worker in workers if worker not in given]
    names = free if torch.device(device).index is None else [device] * len(others)
    if names and may_share_devices():
        names = [names[index % len(names)] for index in range(len(others))]
    devices = {**given, **dict(zip(others, names, strict=False))}
    _require_one_each(devices, workers, num_devices)
    return replace(options, devices={**options.devices, **devices})


def workers_per_device(options: WorkerOptions, device: str, workers: Sequence[str]) -> int:
    """How many workers of this host compute on one device, at most; arguments as of `placed`, whose options these are."""
    indices = (torch.device(options.devices.get(worker, device)).index or 0 for worker in workers)
    return max(Counter(indices).values())


def _require_one_each(devices: dict[str, str], workers: Sequence[str], num_devices: int) -> None:
    distinct = set(devices.values())
    if len(devices) < len(workers) or (len(distinct) < len(devices) and not may_share_devices()):
        raise InvalidInputError(
            f"needs a device for each worker: {len(workers)} workers would have {len(distinct)} of the {num_devices} here; "
            f"start fewer, name others in devices, or take transport='gloo', under which workers share devices",
            field="transport",
            value="nccl",
        )
