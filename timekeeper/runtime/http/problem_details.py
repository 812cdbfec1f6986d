"""Errors for callers of every role, as RFC 9457 problem details."""

from http import HTTPStatus

import orjson
from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotFound

CONTENT_TYPE = "application/problem+json"


def problem_body(status: int, detail: str, field: str = "") -> bytes:
    """The JSON of a problem. ``detail``: a sentence for the caller; ``field``: what it concerns."""
    title = HTTPStatus(status).phrase
    body = {"type": "about:blank", "title": title, "status": status, "detail": _sendable(detail)}
    if field:
        body["field"] = _sendable(field)
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


def _sendable(text: str) -> str:
    """The text as valid UTF-8: JSON escapes can contain half surrogate pairs."""
    return text.encode(errors="replace").decode()
