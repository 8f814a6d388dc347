"""Python runs this as it starts: torch, once it is imported, has the emulated device."""

import ctypes
import importlib.abc
import importlib.util
import os
import sys


class EmulatedFinder(importlib.abc.MetaPathFinder):
    """Finds torch, and nothing else."""

    def find_spec(self, name, path, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        ctypes.CDLL(os.environ["EMULATED_CUDA"])  # before torch, which asks once whether there is a device
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            import emulated_cuda

            emulated_cuda.install()

        spec.loader.exec_module = exec_module
        return spec


if "EMULATED_CUDA" in os.environ:
    sys.meta_path.insert(0, EmulatedFinder())
