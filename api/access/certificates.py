"""TLS by certificate: looked at before the service listens."""

import ssl
import time
from contextlib import suppress
from pathlib import Path

import structlog

from api.settings import Settings
from kintsugi.core.errors import InvalidInputError, cause_of

RENEWAL_SECONDS = 14 * 86_400.0
"""A certificate that ends sooner is worth a warning: a service that starts may run for long."""

OUT_OF_DATE = (9, 10)
"""OpenSSL's codes for a certificate that is not valid yet, and for one that has expired."""


def check_certificate(settings: Settings) -> None:
    """Require a certificate and its key where one of them is given; warn of one that clients refuse by its dates, or soon will.

    Raises:
        InvalidInputError: one is missing, cannot be read, or does not belong to the other.
    """
    certificate, key = settings.tls_certificate, settings.tls_key
    if certificate is None and key is None:
        return
    if certificate is None or key is None:
        missing = "tls_certificate" if certificate is None else "tls_key"
        raise InvalidInputError("is needed too: TLS takes a certificate and its key", field=missing)
    for name, path in (("tls_certificate", certificate), ("tls_key", key)):
        _check_readable(name, path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except ssl.SSLError as error:
        raise InvalidInputError(_reason(error, certificate), field="tls_key", value=str(key)) from error
    _warn_by_dates(context, certificate)


def _warn_by_dates(context: ssl.SSLContext, certificate: Path) -> None:
    log = structlog.get_logger("kintsugi.api")
    try:
        ends = _shown(context, certificate).get("notAfter")
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in OUT_OF_DATE:
            log.warning("clients will refuse the certificate", certificate=str(certificate), reason=error.verify_message)
        return
    except ssl.SSLError:  # which says nothing of its dates
        return
    if isinstance(ends, str) and ssl.cert_time_to_seconds(ends) < time.time() + RENEWAL_SECONDS:
        log.warning("the certificate ends soon; a renewed one is read at the next start", certificate=str(certificate), ends=ends)


def _shown(context: ssl.SSLContext, certificate: Path) -> dict[str, object]:
    """The certificate as a client sees it that trusts nothing else; raises SSLError where it is out of date."""
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname = False
    trusting.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    trusting.load_verify_locations(certificate)
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client, server = trusting.wrap_bio(to_client, to_server), context.wrap_bio(to_server, to_client, server_side=True)
    for end in (client, server, client):
        with suppress(ssl.SSLWantReadError):
            end.do_handshake()
    return dict(client.getpeercert() or {})


def _check_readable(name: str, path: Path) -> None:
    try:
        path.read_bytes()
    except OSError as error:
        raise InvalidInputError(f"cannot be read: {cause_of(error)}", field=name, value=str(path)) from error


def _reason(error: ssl.SSLError, certificate: Path) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"does not belong to the certificate {certificate}; give the key that it was issued for"
    return f"and the certificate {certificate} must be PEM files without a password: {error.reason or error}"


def _no_password() -> bytes:
    """None: the service has nobody whom it could ask."""
    return b""
