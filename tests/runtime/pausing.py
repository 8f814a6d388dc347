"""Processes that are away for a while, as where they are paused."""

import ctypes

_HOLDING = ctypes.PyDLL(None)
"""Calls keep the interpreter's lock."""


def be_away(seconds: float) -> None:
    """No thread of this process goes on for so long."""
    _HOLDING.usleep(ctypes.c_uint(round(seconds * 1e6)))
