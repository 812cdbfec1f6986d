"""Sessions of visitors, without a store: a cookie holds the token, another one a secret for forms.

The token in a form is an HMAC with that secret of the visitor's token, so another site can neither read nor
compute it. Every worker and replica accepts it, for all it needs is in the request.
"""

import hashlib
import hmac
import re
import secrets

from flask import Request, Response
from werkzeug.datastructures import MultiDict

SESSION, SECRET, PAGE = "bursar-session", "bursar-forms", "bursar-page"  # names of the cookies
_PAGE_S = 90 * 86_400
FIELD = "form_token"
MAX_TOKEN = 3_800  # bytes; browsers drop a larger cookie in silence

_TOKEN = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)
_SECRET = re.compile(r"[0-9a-f]{64}", re.ASCII)
_NOT_IN_PATHS = re.compile(r"[\x00-\x20\\\x7f-\x9f]")


def token_of(request: Request) -> str:
    """The visitor's token; "" without one."""
    token = request.cookies.get(SESSION, "")
    return token if is_storable(token) else ""


def is_storable(token: str) -> bool:
    """Whether a cookie can hold the text as a token."""
    return len(token) <= MAX_TOKEN and _TOKEN.fullmatch(token) is not None


def secret_of(request: Request) -> str:
    """The secret of this browser's forms; a new one where it has none."""
    known = request.cookies.get(SECRET, "")
    return known if _SECRET.fullmatch(known) else secrets.token_hex(32)


def form_token(secret: str, token: str) -> str:
    """What a form of this visitor carries. ``token``: of its session, perhaps ended; "": without one."""
    return hmac.new(secret.encode(), f"form {token}".encode(), hashlib.sha256).hexdigest()


def is_own_form(request: Request, form: MultiDict[str, str], token: str) -> bool:
    """Whether a page of ours, shown to this visitor, has sent the form."""
    if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
        return False
    secret = request.cookies.get(SECRET, "")
    given = form.get(FIELD, "").encode(errors="replace")
    return bool(_SECRET.fullmatch(secret)) and hmac.compare_digest(given, form_token(secret, token).encode())


def is_from_elsewhere(request: Request) -> bool:
    """Whether a link of another site led here, so that the browser has kept the cookies back."""
    return request.headers.get("Sec-Fetch-Site") == "cross-site"


def remember(response: Response, name: str, value: str) -> None:
    """Set a cookie that scripts cannot read and other sites cannot send; it ends with the browser."""
    response.set_cookie(name, value, secure=True, httponly=True, samesite="Strict", path="/")


def remember_page(response: Response, path: str) -> None:
    """Keep what this browser showed last."""
    response.set_cookie(PAGE, path[:MAX_TOKEN], _PAGE_S, secure=True, httponly=True, samesite="Lax", path="/")


def first_page(request: Request, onward: str) -> str:
    """Where a login leads: to the page that was asked for, else to the one that this browser showed last."""
    return own_path(request.cookies.get(PAGE, "/")) if onward == "/" else onward


def forget(response: Response, name: str) -> None:
    """Remove the cookie."""
    response.delete_cookie(name, secure=True, httponly=True, samesite="Strict", path="/")


def own_path(text: str) -> str:
    """A path of this server to go on with; "/" in place of anything that could lead elsewhere."""
    if not text.startswith("/") or text.startswith("//") or _NOT_IN_PATHS.search(text):
        return "/"
    return text
