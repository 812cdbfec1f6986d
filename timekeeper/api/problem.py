"""Errors for callers, as RFC 9457 problem details."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

import orjson
from flask import Response

CONTENT_TYPE = "application/problem+json"


@dataclass(eq=False)
class Problem(Exception):
    """An error answer. ``detail`` is a sentence for the caller, ``where`` the field it concerns."""

    status: int
    detail: str
    where: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)

    def response(self) -> Response:
        """The answer."""
        return Response(self.body(), self.status, self.headers, content_type=CONTENT_TYPE)

    def body(self) -> bytes:
        """Its JSON body."""
        title = HTTPStatus(self.status).phrase
        detail = _sendable(self.detail)
        body = {"type": "about:blank", "title": title, "status": self.status, "detail": detail}
        if self.where:
            body["field"] = _sendable(self.where)
        return orjson.dumps(body)


def _sendable(text: str) -> str:
    """The text as valid UTF-8: JSON escapes can contain half surrogate pairs."""
    return text.encode(errors="replace").decode()


def bad(where: str, detail: str) -> Problem:
    """400: an invalid field of the request."""
    return Problem(400, detail, where)


def unavailable(detail: str) -> Problem:
    """503: nothing was written; the same request may succeed later."""
    return Problem(503, detail, headers={"Retry-After": "2"})
