"""Who may read a timekeeper that serves one person on the loopback: each caller with the token of a file.

It asks no API server: that person's rights are those of the kubeconfig that the process reads with.
"""

import base64
import hmac
import json
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from timekeeper.core.names import AUDIENCE
from timekeeper.runtime.auth.gate import Gate

USER = "bursar:loopback"
_FOREVER_S = 253_402_300_799  # the last second of the year 9999


def new_token() -> str:
    """A token of the form that the REST API takes. Its last part alone is secret."""
    parts = ({"alg": "none"}, {"aud": [AUDIENCE], "exp": _FOREVER_S, "sub": USER})
    head, claims = (_encoded(json.dumps(each).encode()) for each in parts)
    return f"{head}.{claims}.{_encoded(secrets.token_bytes(32))}"


def write_token(file: Path) -> None:
    """A new token in a file that its owner alone may read. Raises OSError."""
    file.unlink(missing_ok=True)
    file.touch(mode=0o600)
    file.write_text(new_token())


def local_gate(token: str, now_ms: Callable[[], int]) -> Gate:
    """A gate that admits this token to everything that can be read, and to nothing else."""

    def review(path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        if path.endswith("/tokenreviews"):
            is_known = hmac.compare_digest(str(body["spec"]["token"]).encode(), token.encode())
            user = {"username": USER, "uid": USER, "groups": []}
            return {"status": {"authenticated": is_known, "audiences": [AUDIENCE], "user": user}}
        attributes = body["spec"].get("resourceAttributes", {})
        return {"status": {"allowed": attributes.get("verb", "get") in ("get", "list")}}

    return Gate(review, AUDIENCE, now_ms)


def _encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")
