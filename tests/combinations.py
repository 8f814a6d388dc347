"""Cases of tests that start processes: `make test` takes each value in turn, the soak every combination."""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import settings

SOAK_PROFILE = "fresh"


def combined(names: str, *axes: Sequence[object]) -> pytest.MarkDecorator:
    """Parametrize over several axes.

    As many cases as the longest axis has values, each with the next value of every other one; in the soak, which has the time,
    all combinations.

    Args:
        names: of the arguments, by commas.
        axes: values of each.
    """
    if settings.get_current_profile_name() == SOAK_PROFILE:
        return pytest.mark.parametrize(names, list(itertools.product(*axes)))
    longest = max(map(len, axes))
    return pytest.mark.parametrize(names, [tuple(axis[case % len(axis)] for axis in axes) for case in range(longest)])
