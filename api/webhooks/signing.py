"""Signatures as in the Standard Webhooks specification 1.0."""

import base64
import hashlib
import hmac

from api.webhooks.hooks import secret_bytes


def signed_headers(secret: str, message_id: str, timestamp: int, body: str) -> dict[str, str]:
    """The three headers by which a receiver knows sender, time and content.

    Args:
        secret: `whsec_` and base64.
        message_id: the same at every attempt.
        timestamp: of this attempt, seconds since 1970.
        body: what is sent.
    """
    content = f"{message_id}.{timestamp}.{body}".encode()
    signature = base64.b64encode(hmac.new(secret_bytes(secret), content, hashlib.sha256).digest()).decode()
    return {"webhook-id": message_id, "webhook-timestamp": str(timestamp), "webhook-signature": f"v1,{signature}"}
