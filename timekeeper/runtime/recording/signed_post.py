"""Posts a signed body to a server that somebody else runs."""

import hashlib
import hmac

from timekeeper.edge.http_client import HttpClient, server_and_path, system_context
from timekeeper.runtime.proxies import connecting_out

TIMEOUT_S = 5.0  # also for an answer as a whole
MOST_BYTES = 1 << 20  # of an answer, whose status alone counts
SIGNATURE = "Bursar-Signature"
FAILURES = (OSError, ValueError)
"""What `post` raises if there is no answer."""


def signature(key: bytes, body: bytes) -> str:
    """The header's value: HMAC-SHA256 (RFC 2104) of the body, in hexadecimal."""
    return f"sha256={hmac.new(key, body, hashlib.sha256).hexdigest()}"


def post(url: str, body: bytes, key: bytes, within_s: float = TIMEOUT_S) -> int:
    """The status of the answer; redirects are not followed. A certificate is verified by the system's CAs.
    The environment may name a proxy. Raises one of `FAILURES`."""
    server, path = server_and_path(url)
    headers = {"Content-Type": "application/json", SIGNATURE: signature(key, body)}
    client = HttpClient(server, connecting_out(system_context), keep=0)
    return client.call("POST", path, headers, body, within_s=within_s, repeat=False, most=MOST_BYTES).status
