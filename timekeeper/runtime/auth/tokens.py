"""The unverified claims of a token: enough to reject a hopeless token without a TokenReview."""

import base64
import binascii
import re
import secrets

import orjson

_FORM = re.compile(r"[A-Za-z0-9_-]{2,4096}\.[A-Za-z0-9_-]{2,16384}\.[A-Za-z0-9_-]{2,4096}", re.ASCII)
_LOGIN = "bursar-login."  # begins the token of a session that a login by OpenID Connect has begun
_LEEWAY_S = 60  # allowed difference between our clock and the issuer's


def fault(token: str, audience: str, now_ms: int) -> str:
    """Why the token cannot be valid, in a few words; empty if it can be. Which issuers count, and for how
    long, is the API server's to say."""
    claims = _claims(token)
    if claims is None:
        return "it is not a service account token"
    audiences = claims.get("aud")
    if audience not in (audiences if isinstance(audiences, list) else [audiences]):
        return f'it is not for the audience "{audience}"'
    expiry = claims.get("exp")
    if not isinstance(expiry, int) or now_ms >= 1000 * (expiry + _LEEWAY_S):
        return "it has expired"
    return ""


def new_login() -> str:
    """The token of a new session of a person who has logged in."""
    return _LOGIN + secrets.token_urlsafe(32)


def is_login(token: str) -> bool:
    """Whether it has the form of `new_login`."""
    return token.startswith(_LOGIN)


def subject_of(token: str) -> str:
    """The name of the token's account, unverified; empty if it has none."""
    subject = (_claims(token) or {}).get("sub")
    return subject if isinstance(subject, str) else ""


def _claims(token: str) -> dict[str, object] | None:
    if not _FORM.fullmatch(token):
        return None
    head, body, _ = token.split(".")
    decoded = _object(body)
    return decoded if decoded is not None and _object(head) is not None else None


def _object(part: str) -> dict[str, object] | None:
    try:
        value = orjson.loads(base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True))
    except (binascii.Error, ValueError):
        return None
    return value if isinstance(value, dict) else None
