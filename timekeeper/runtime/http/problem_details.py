"""Errors for callers of every role, as RFC 9457 problem details."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus

import orjson
from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotFound

from timekeeper.runtime.http.service import HttpAnswer

CONTENT_TYPE = "application/problem+json"


@dataclass(eq=False)
class Problem(Exception):
    """An error answer. ``detail`` is a sentence for the caller, ``where`` the field it concerns. ``others``:
    what else is wrong with the same request, for people who mend a form."""

    status: int
    detail: str
    where: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    others: tuple["Problem", ...] = ()

    def response(self) -> Response:
        """The answer."""
        return Response(self.body(), self.status, self.headers, content_type=CONTENT_TYPE)

    def http_answer(self) -> HttpAnswer:
        """The same answer, for the worker's own routes."""
        return HttpAnswer(HTTPStatus(self.status), CONTENT_TYPE, self.body(), tuple(self.headers.items()))

    def body(self) -> bytes:
        """Its JSON body."""
        all_wrong = (self, *self.others) if self.others else ()
        errors = [(each.where, each.detail) for each in all_wrong]
        return problem_body(self.status, self.detail, self.where, errors)


def bad(where: str, detail: str) -> Problem:
    """400: an invalid field of the request."""
    return Problem(400, detail, where)


def together(problems: Sequence[Problem]) -> Problem:
    """One answer for all that is wrong: the first, which names the others. ``problems``: one at least."""
    first, *rest = (flat for each in problems for flat in (replace(each, others=()), *each.others))
    return replace(first, others=tuple(rest))


def unavailable(detail: str) -> Problem:
    """503: nothing was written; the same request may succeed later."""
    return Problem(503, detail, headers={"Retry-After": "2"})


def problem_body(status: int, detail: str, field: str = "", errors: Sequence[tuple[str, str]] = ()) -> bytes:
    """The JSON of a problem. ``detail``: a sentence for the caller; ``field``: what it concerns; ``errors``:
    field and sentence of all that is wrong, where that is more than one."""
    title = HTTPStatus(status).phrase
    body: dict[str, object] = {
        "type": "about:blank",
        "title": title,
        "status": status,
        "detail": _sendable(detail),
    }
    if field:
        body["field"] = _sendable(field)
    if errors:
        body["errors"] = [{"detail": _sendable(said), "field": _sendable(at)} for at, said in errors]
    return orjson.dumps(body)


def answer_with_problems(app: Flask) -> None:
    """Let the application answer unknown routes, wrong methods and unreadable requests with a problem."""

    @app.errorhandler(HTTPException)
    def refuse_request(error: HTTPException) -> Response:
        status = error.code or 500
        detail = f"there is no route {request.path}" if isinstance(error, NotFound) else error.description
        methods = error.valid_methods if isinstance(error, MethodNotAllowed) else None
        headers = {"Allow": ", ".join(methods)} if methods else {}
        return Response(problem_body(status, detail or ""), status, headers, content_type=CONTENT_TYPE)

    @app.teardown_request
    def forget_refusal(_: BaseException | None) -> None:
        """Flask leaves a cycle: the request refers to the refusal, whose traceback refers to the request and
        so to its body."""
        request.routing_exception = None


def _sendable(text: str) -> str:
    """The text as valid UTF-8: JSON escapes can contain half surrogate pairs."""
    return text.encode(errors="replace").decode()
