"""The emulated device's library: compiled once for each source and version of torch, and told to processes by environment."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import torch
from torch.utils import cpp_extension

SOURCE = Path(__file__).with_name("device.cpp")
SITE = Path(__file__).with_name("site")
ROOT = Path(__file__).parents[2]
COMPILER = "g++"
PATIENCE_SECONDS = 300.0


def library() -> Path:
    """The shared library, compiled where it is not there.

    Raises:
        RuntimeError: there is no compiler, or it refuses the source.
    """
    version = hashlib.sha256(SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()[:16]
    target = ROOT / "build" / "emulated" / f"device-{version}.so"
    if not target.exists():
        if shutil.which(COMPILER) is None:
            raise RuntimeError(f"{COMPILER} is missing, which compiles the emulated device: apt-get install {COMPILER}")
        target.parent.mkdir(parents=True, exist_ok=True)
        compile_into(target)
    return target


def compile_into(target: Path) -> None:
    """Whole or not at all, whoever else does the same meanwhile."""
    own = target.with_suffix(f".{os.getpid()}")
    (libraries,) = cpp_extension.library_paths()
    folders = [f"-I{folder}" for folder in cpp_extension.include_paths()] + [f"-L{libraries}", f"-Wl,-rpath,{libraries}"]
    options = ["-O1", "-std=c++20", "-fPIC", "-shared", "-Wno-interference-size"]
    command = [COMPILER, *options, str(SOURCE), "-o", str(own), *folders, "-ltorch", "-ltorch_cpu", "-lc10"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{COMPILER} refuses {SOURCE.name}:\n{done.stderr}")
        own.replace(target)
    finally:
        own.unlink(missing_ok=True)


def environment() -> dict[str, str]:
    """Of a process that is to find the device, and of all that it starts."""
    paths = [str(SITE), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "EMULATED_CUDA": str(library())}


if __name__ == "__main__":  # run a command with the device
    os.execvpe(sys.argv[1], sys.argv[1:], environment())
