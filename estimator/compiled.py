"""Inner loops as machine code."""

from collections.abc import Callable
from typing import TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """`function` compiled by numba on its first call; the machine code is kept beside its file for later processes.

    The function may use scalars, tuples and numpy arrays, and other compiled functions.
    """
    return cast("Function", numba.njit(cache=True, error_model="numpy")(function))
