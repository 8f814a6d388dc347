"""How the tests say that a noun refuses a field."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kintsugi.core.errors import InvalidInputError


@contextmanager
def refuses(field: str, value: Any = ..., fragment: str = "") -> Iterator[None]:
    """Expect an InvalidInputError of this field, with this value and this in its message."""
    with pytest.raises(InvalidInputError) as caught:
        yield
    assert caught.value.field == field
    assert value is ... or caught.value.value == value
    assert fragment in caught.value.message
