"""Certificates are looked at before the service listens."""

from datetime import UTC, datetime, timedelta

import pytest
import trustme
from structlog.testing import capture_logs

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


@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize(
    ("begins", "ends", "told"),
    [
        (-9, 60, []),
        (-9, 1, ["the certificate ends soon; a renewed one is read at the next start"]),
        (-9, -1, ["clients will refuse the certificate"]),
        (1, 60, ["clients will refuse the certificate"]),
    ],
    ids=["valid", "soon", "expired", "not yet"],
)
@pytest.mark.parametrize("is_chain", [False, True])
def test_what_clients_refuse_by_its_dates_is_warned_of(tmp_path, begins, ends, told, is_chain):
    authority, now = trustme.CA(), datetime.now(UTC)
    issuer = authority.create_child_ca() if is_chain else authority
    days = {"not_before": now + timedelta(days=begins), "not_after": now + timedelta(days=ends)}
    issued = issuer.issue_cert("localhost", **days)
    certificate, key = tmp_path / "one.pem", tmp_path / "one.key"
    certificate.write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(key)
    with capture_logs() as lines:
        check_certificate(Settings(tls_certificate=certificate, tls_key=key))
    assert [line["event"] for line in lines] == told
    assert all(line["certificate"] == str(certificate) for line in lines)
