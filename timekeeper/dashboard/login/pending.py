"""A login that has begun, in a cookie of the browser in which it goes on."""

import hashlib
import hmac
import secrets
from base64 import urlsafe_b64encode
from dataclasses import dataclass

from flask import Request, Response

# No other site, not even a neighbour of the same domain, can set a cookie of this name.
COOKIE = "__Host-bursar-login"
_MAX_AGE_S = 600


@dataclass(frozen=True, slots=True)
class PendingLogin:
    """``state`` ties the provider's answer to this browser, ``nonce`` its token to this login, ``verifier``
    the code to both (RFC 7636); ``onward``: the path to go on with."""

    state: str
    nonce: str
    verifier: str
    onward: str

    @property
    def challenge(self) -> str:
        """What the provider learns of the verifier."""
        digest = hashlib.sha256(self.verifier.encode()).digest()
        return urlsafe_b64encode(digest).decode().rstrip("=")

    def is_answered_by(self, state: str) -> bool:
        """Whether the provider's answer belongs to it."""
        return hmac.compare_digest(self.state.encode(), state.encode(errors="replace"))


def begin(onward: str) -> PendingLogin:
    """A new one. ``onward``: a path of this server."""
    state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
    return PendingLogin(state, nonce, verifier, onward)


def remember(response: Response, login: PendingLogin) -> None:
    """Set the cookie. The browser sends it with the provider's redirection too, for that is a link."""
    value = " ".join((login.state, login.nonce, login.verifier, login.onward))
    response.set_cookie(
        COOKIE, value, max_age=_MAX_AGE_S, secure=True, httponly=True, samesite="Lax", path="/"
    )


def pending(request: Request) -> PendingLogin | None:
    """This browser's login; None if none has begun."""
    parts = request.cookies.get(COOKIE, "").split(" ")
    if len(parts) != 4 or not all(parts):
        return None
    return PendingLogin(*parts)


def forget(response: Response) -> None:
    """Remove the cookie."""
    response.delete_cookie(COOKIE, secure=True, httponly=True, samesite="Lax", path="/")
