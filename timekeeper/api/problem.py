"""Errors for callers, as RFC 9457 problem details."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from flask import Response

from timekeeper.runtime.http.problem_details import CONTENT_TYPE, problem_body


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
        return problem_body(self.status, self.detail, self.where)


def bad(where: str, detail: str) -> Problem:
    """400: an invalid field of the request."""
    return Problem(400, detail, where)


def unavailable(detail: str) -> Problem:
    """503: nothing was written; the same request may succeed later."""
    return Problem(503, detail, headers={"Retry-After": "2"})
