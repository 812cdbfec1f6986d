"""Posts a signed body to a server that somebody else runs."""

import hashlib
import hmac
import http.client
import ssl
from urllib.parse import urlsplit

TIMEOUT_S = 5.0
SIGNATURE = "Bursar-Signature"
FAILURES = (OSError, ValueError, http.client.HTTPException)
"""What `post` raises if there is no answer."""


def signature(key: bytes, body: bytes) -> str:
    """The header's value: HMAC-SHA256 (RFC 2104) of the body, in hexadecimal."""
    return f"sha256={hmac.new(key, body, hashlib.sha256).hexdigest()}"


def post(url: str, body: bytes, key: bytes) -> int:
    """The status of the answer; redirects are not followed. A certificate is verified by the system's CAs.
    Raises one of `FAILURES`."""
    address = urlsplit(url)
    connection: http.client.HTTPConnection
    if address.scheme == "https":
        context = ssl.create_default_context()
        connection = http.client.HTTPSConnection(address.netloc, timeout=TIMEOUT_S, context=context)
    else:
        connection = http.client.HTTPConnection(address.netloc, timeout=TIMEOUT_S)
    try:
        path = (address.path or "/") + (f"?{address.query}" if address.query else "")
        headers = {"Content-Type": "application/json", SIGNATURE: signature(key, body)}
        connection.request("POST", path, body=body, headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()
