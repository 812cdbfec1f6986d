"""What goes wrong for a caller, as RFC 9457 problem details."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

import orjson
from flask import Response

CONTENT_TYPE = "application/problem+json"


@dataclass(eq=False)
class Problem(Exception):
    """An answer that is a refusal: ``detail`` is a sentence for the caller, ``where`` the field it is
    about."""

    status: int
    detail: str
    where: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)

    def response(self) -> Response:
        """The answer."""
        return Response(self.body(), self.status, self.headers, content_type=CONTENT_TYPE)

    def body(self) -> bytes:
        """What it carries."""
        title = HTTPStatus(self.status).phrase
        detail = _sendable(self.detail)
        body = {"type": "about:blank", "title": title, "status": self.status, "detail": detail}
        if self.where:
            body["field"] = _sendable(self.where)
        return orjson.dumps(body)


def _sendable(text: str) -> str:
    """The text as UTF-8 can say it: JSON's escapes can name halves of characters."""
    return text.encode(errors="replace").decode()


def bad(where: str, detail: str) -> Problem:
    """400: a field of the request that cannot be taken."""
    return Problem(400, detail, where)


def unavailable(detail: str) -> Problem:
    """503: nothing was written; the same request may succeed later."""
    return Problem(503, detail, headers={"Retry-After": "2"})
