"""Rates of plain copies between memories of this machine: what moving state could reach at the most."""

import statistics
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

MOST_REPEATS, LEAST_REPEATS = 30, 5
MEASURED_BYTES = 4 * 2**30
"""Copied in all for one figure, within the limits above."""

Action = Callable[[], None]


def host_copies(num_bytes: int) -> Iterator[tuple[str, float]]:
    """What it is, and its rate in bytes per second: from host memory to host memory, by one thread."""
    source, target = _written(num_bytes), _written(num_bytes)
    yield "host to host", rate(lambda: _copy(source, target), num_bytes)


def device_copies(num_bytes: int, device: torch.device) -> Iterator[tuple[str, float]]:
    """The same between host memory, pageable and pinned, and a CUDA device; both directions count twice."""
    on_device, other = (torch.zeros(num_bytes, dtype=torch.uint8, device=device) for _ in range(2))
    for kind in ("pageable", "pinned"):
        host = _written(num_bytes).pin_memory() if kind == "pinned" else _written(num_bytes)
        yield f"{kind} host to device", rate(lambda host=host: _copy(host, on_device), num_bytes, device)  # type: ignore[misc]
        yield f"device to {kind} host", rate(lambda host=host: _copy(on_device, host), num_bytes, device)  # type: ignore[misc]
    yield "device to device", rate(lambda: _copy(on_device, other), num_bytes, device)
    there, back = (_written(num_bytes).pin_memory() for _ in range(2))
    streams = torch.cuda.Stream(device), torch.cuda.Stream(device)

    def both() -> None:
        with torch.cuda.stream(streams[0]):
            _copy(there, on_device)
        with torch.cuda.stream(streams[1]):
            _copy(other, back)

    yield "both directions at once, pinned", rate(both, 2 * num_bytes, device)


def rate(action: Action, num_bytes: int, device: torch.device | None = None) -> float:
    """Bytes per second: the median of repetitions after one that does not count; on a device up to the end of its work."""
    seconds = []
    for _ in range(1 + min(MOST_REPEATS, max(LEAST_REPEATS, MEASURED_BYTES // num_bytes))):
        began = time.perf_counter()
        action()
        if device is not None and device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - began)
    return num_bytes / statistics.median(seconds[1:])


def _copy(source: Tensor, target: Tensor) -> None:
    target.copy_(source, non_blocking=True)


def _written(num_bytes: int) -> Tensor:
    """Memory whose pages are there."""
    return torch.full((num_bytes,), 7, dtype=torch.uint8)
