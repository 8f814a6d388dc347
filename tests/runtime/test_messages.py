"""What workers tell of their errors: all of what the error says, and where it was raised."""

import pytest

from kintsugi.core.errors import InvalidInputError, error_from
from kintsugi.runtime.messages import Failed
from kintsugi.runtime.models import noted


def test_an_error_says_elsewhere_too_where_it_was_raised():
    with pytest.raises(InvalidInputError) as caught, noted("in samples 4, 57 of the data set"), noted("once"):
        raise InvalidInputError("gives a sample without 'label'", field="dataset", value="label")
    told = error_from(Failed.by(caught.value).error or {})
    assert isinstance(told, InvalidInputError)
    assert (told.field, told.value) == ("dataset", "label")
    assert told.message == "gives a sample without 'label'; once; in samples 4, 57 of the data set"


def test_an_error_of_the_trainers_own_code_is_told_by_its_traceback():
    failed = Failed.by(ZeroDivisionError("division by zero"))
    assert failed.error is None
    assert failed.traceback == "ZeroDivisionError: division by zero\n"
