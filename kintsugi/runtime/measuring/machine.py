"""What is under the job: the device of a worker, and a line that tells this machine from others."""

import os
import platform
import re
from pathlib import Path

import torch

from kintsugi.core.profile import Device


def device_of(name: str, num_workers: int) -> Device:
    """The device that one of `num_workers` workers computes on; on the CPU each has its share of the machine's memory.

    On CUDA devices, memory that the allocator of this process does not have and that is not free (the context, other
    processes) is reserved.
    """
    if torch.device(name).type == "cuda":
        free, total = torch.cuda.mem_get_info(name)
        reserved = max(total - free - torch.cuda.memory_reserved(name), 0)
        return Device(name=torch.cuda.get_device_name(name), memory_bytes=total, reserved_bytes=reserved)
    return Device(name=processor_name(), memory_bytes=memory_bytes() // num_workers)


def memory_bytes() -> int:
    """Memory of this machine (`MemTotal` in /proc/meminfo)."""
    match = re.search(r"^MemTotal:\s*(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    assert match is not None
    return int(match[1]) * 1024


def processor_name() -> str:
    """Model of the processor, as its maker names it; the architecture where it names none."""
    match = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return match[1].strip() if match else platform.machine()


def description() -> str:
    """Processor, cores, memory, and versions, in one line."""
    cores = len(os.sched_getaffinity(0))
    memory = memory_bytes() / 1e9
    versions = f"torch {torch.__version__}, Python {platform.python_version()}"
    return f"{processor_name()}, {cores} cores, {memory:.1f} GB of memory, {versions}"
