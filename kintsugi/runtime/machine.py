"""What is under the job: the device of a worker, and a line that tells this machine from others."""

import gc
import os
import platform
import re
import subprocess
from contextlib import suppress
from pathlib import Path

import torch

from kintsugi.core.profile import Device

_DRIVER = Path("/proc/driver/nvidia/version")
_PATIENCE_SECONDS = 30.0


def device_of(name: str, num_workers: int) -> Device:
    """The device that one of `num_workers` workers computes on: each has its share of a CUDA device's or the machine's memory.

    On CUDA devices all memory is reserved that is neither free nor only kept by this process's allocator for later: the context,
    libraries' workspaces, whatever lies there now, other processes. That an allocator cannot use all of what it keeps is not in it.
    """
    if torch.device(name).type == "cuda":
        free, total = torch.cuda.mem_get_info(name)
        kept = torch.cuda.memory_reserved(name) - torch.cuda.memory_allocated(name)
        return Device(name=device_name(name), memory_bytes=total // num_workers, reserved_bytes=max(total - free - kept, 0))
    return Device(name=device_name(name), memory_bytes=memory_bytes() // num_workers)


def give_back(device: str) -> None:
    """Have this process keep none of a CUDA device's memory for later: whoever comes next on it is another process."""
    if torch.device(device).type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()


def device_name(device: str) -> str:
    """As its maker names it."""
    return torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else processor_name()


def driver_of(device: str) -> str | None:
    """Version of a CUDA device's driver; None for processors."""
    return driver_version() if torch.device(device).type == "cuda" else None


def memory_bytes() -> int:
    """Memory of this machine (`MemTotal` in /proc/meminfo)."""
    match = re.search(r"^MemTotal:\s*(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    assert match is not None
    return int(match[1]) * 1024


def processor_name() -> str:
    """Model of the processor, as its maker names it; the architecture where it names none."""
    match = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return match[1].strip() if match else platform.machine()


def description(device: str = "cpu") -> str:
    """Processor, cores, memory, a CUDA device with its driver and libraries (cuDNN's attention, too), and versions, in one line."""
    cores = len(os.sched_getaffinity(0))
    memory = memory_bytes() / 1e9
    versions = f"torch {torch.__version__}, Python {platform.python_version()}"
    return f"{_accelerator(device)}{processor_name()}, {cores} cores, {memory:.1f} GB of memory, {versions}"


def _accelerator(device: str) -> str:
    if torch.device(device).type != "cuda":
        return ""
    cudnn = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else "none"
    return f"{device_name(device)}, driver {driver_of(device)}, CUDA {torch.version.cuda}, cuDNN {cudnn}; "


def identity(device: str) -> str:
    """This machine's name, and what it has, in one line. No CUDA device is touched: nothing is kept on one for it."""
    own = f"{platform.node()}: {description()}"
    return own if torch.device(device).type != "cuda" else f"{own}; {_told_by_tool('name')}, driver {driver_version()}"


def driver_version() -> str:
    """Of NVIDIA's driver, as it tells the kernel, or as its own tool does; `unknown` where neither is there."""
    if _DRIVER.exists() and (match := re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)\s", _DRIVER.read_text())):
        return match[1]
    return _told_by_tool("driver_version").partition("; ")[0]


def _told_by_tool(field: str) -> str:
    """What NVIDIA's tool says of every device; `unknown` where it is not there."""
    query = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader"]
    with suppress(OSError, subprocess.SubprocessError):
        answer = subprocess.run(query, capture_output=True, text=True, timeout=_PATIENCE_SECONDS, check=True)  # noqa: S603  # constant
        return "; ".join(line.strip() for line in answer.stdout.splitlines()) or "unknown"
    return "unknown"
