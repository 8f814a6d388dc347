"""Inner loops as machine code."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., object])

_UNCOUNTED: dict[str, Any] = {"_nrt": False}
"""Without numba's runtime, which counts references and makes arrays; an option that its types leave out."""


def compiled(function: Function) -> Function:
    """`function` compiled by numba on its first call; the machine code is kept beside its file for later processes.

    The function may use scalars, tuples and numpy arrays, and other compiled functions.
    """
    return cast("Function", numba.njit(cache=True, error_model="numpy")(function))


def borrowing(function: Function) -> Function:
    """`compiled` for what makes no arrays, but reads and writes those that it is given: their references are not counted.

    Counting is atomic, for every array of every call, and takes most of the time of small functions in others' loops.
    A function that makes an array after all does not compile.
    """
    return cast("Function", numba.njit(cache=True, error_model="numpy", **_UNCOUNTED)(function))
