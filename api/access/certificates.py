"""TLS by certificate: looked at before the service listens."""

import ssl
from pathlib import Path

from api.settings import Settings
from kintsugi.core.errors import InvalidInputError


def check_certificate(settings: Settings) -> None:
    """Require a certificate and its key where one of them is given.

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
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=_no_password)
    except ssl.SSLError as error:
        raise InvalidInputError(_reason(error, certificate), field="tls_key", value=str(key)) from error


def _check_readable(name: str, path: Path) -> None:
    try:
        path.read_bytes()
    except OSError as error:
        raise InvalidInputError(f"cannot be read: {error.strerror or error}", field=name, value=str(path)) from error


def _reason(error: ssl.SSLError, certificate: Path) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"does not belong to the certificate {certificate}; give the key that it was issued for"
    return f"and the certificate {certificate} must be PEM files without a password: {error.reason or error}"


def _no_password() -> bytes:
    """None: the service has nobody whom it could ask."""
    return b""
