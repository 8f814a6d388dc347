"""Certificates are looked at before the service listens."""

import pytest
import trustme

from api.access.certificates import check_certificate
from api.settings import Settings
from kintsugi.core.errors import InvalidInputError


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Two certificates of one authority, with their keys."""
    folder, authority = tmp_path_factory.mktemp("tls"), trustme.CA()
    for name in ("one", "other"):
        issued = authority.issue_cert("localhost", "127.0.0.1")
        issued.private_key_pem.write_to_path(folder / f"{name}.key")
        issued.cert_chain_pems[0].write_to_path(folder / f"{name}.pem")
    return folder


def test_a_certificate_with_its_key_is_taken(files):
    check_certificate(Settings())
    check_certificate(Settings(tls_certificate=files / "one.pem", tls_key=files / "one.key"))


@pytest.mark.parametrize(
    ("certificate", "key", "field", "message"),
    [
        ("one.pem", None, "tls_key", "needed too"),
        (None, "one.key", "tls_certificate", "needed too"),
        ("nowhere.pem", "one.key", "tls_certificate", "No such file"),
        ("one.pem", "nowhere.key", "tls_key", "No such file"),
        ("one.pem", "other.key", "tls_key", "does not belong"),
        ("one.key", "one.key", "tls_key", "PEM files"),
    ],
)
def test_what_cannot_be_served_is_told(files, certificate, key, field, message):
    given = {name: files / file for name, file in (("tls_certificate", certificate), ("tls_key", key)) if file}
    with pytest.raises(InvalidInputError, match=message) as refused:
        check_certificate(Settings(**given))
    assert refused.value.field == field
