"""Ends with 0 where the service of this container is ready: on the port, and over TLS, as its settings say."""

import os
import ssl
import urllib.request

SCHEME = "https" if os.environ.get("KINTSUGI_TLS_CERTIFICATE") else "http"
URL = f"{SCHEME}://127.0.0.1:{os.environ['KINTSUGI_PORT']}/readyz"

ITSELF = ssl.create_default_context()
ITSELF.check_hostname = False  # asked by an address that no certificate names
ITSELF.verify_mode = ssl.CERT_NONE

urllib.request.urlopen(URL, timeout=2, context=ITSELF).read()  # noqa: S310 - it is http or https
