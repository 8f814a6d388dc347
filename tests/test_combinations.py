"""How cases of several axes are put together."""

import pytest
from hypothesis import settings

from tests.combinations import SOAK_PROFILE, combined


@pytest.fixture
def load_profile():
    before = settings.get_current_profile_name()
    yield settings.load_profile
    settings.load_profile(before)


def test_every_value_occurs_and_in_the_soak_every_combination(load_profile):
    load_profile("same")
    assert combined("a, b", [1, 2], "xyz").args == ("a, b", [(1, "x"), (2, "y"), (1, "z")])
    load_profile(SOAK_PROFILE)
    assert combined("a, b", [1, 2], "xy").args == ("a, b", [(1, "x"), (1, "y"), (2, "x"), (2, "y")])
