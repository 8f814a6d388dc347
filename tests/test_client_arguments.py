"""What a client is made of is refused where it cannot be, before anything is asked."""

import pytest

from kintsugi.client import Client, Patience
from kintsugi.core.errors import InvalidInputError


@pytest.mark.parametrize("url", ["nonsense", "", "localhost:8000", "ftp://service", "http://", "http://service:port", None])
def test_what_is_no_address_of_a_service_is_refused(url):
    with pytest.raises(InvalidInputError) as refused:
        Client(url)
    assert (refused.value.field, refused.value.value) == ("url", url)


@pytest.mark.parametrize("url", ["http://service/v1", "https://service:8000/kintsugi/v1/"])
def test_the_version_is_no_part_of_the_address(url):
    with pytest.raises(InvalidInputError, match="url: ends in /v1, which the client itself adds"):
        Client(url)


@pytest.mark.parametrize("token", ["geheim\n", "geh\xe9im", "two words"])
def test_a_token_that_cannot_be_sent_is_refused_and_not_repeated(token):
    with pytest.raises(InvalidInputError, match="token: must be printable ASCII") as refused:
        Client("http://service", token=token)
    assert token.strip() not in str(refused.value)
    assert refused.value.value is None


@pytest.mark.parametrize(
    ("field", "value"),
    [("attempts", 0), ("timeout_seconds", -1.0), ("timeout_seconds", None), ("connect_seconds", "5"), ("retry_seconds", -1.0)],
)
def test_a_patience_that_cannot_be_is_refused(field, value):
    with pytest.raises(InvalidInputError) as refused:
        Patience(**{field: value})
    assert refused.value.field == field
