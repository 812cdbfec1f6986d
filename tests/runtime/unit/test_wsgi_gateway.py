"""The WSGI application behind our worker."""

import gc
from http import HTTPStatus
from typing import ClassVar

import pytest
from flask import Flask, Response

from timekeeper.runtime.http.framing import RequestReader
from timekeeper.runtime.http.problem_details import Problem, answer_with_problems
from timekeeper.runtime.http.service import Handler, HttpAnswer, HttpRequest
from timekeeper.runtime.http.wsgi_gateway import wsgi_handler


class Body(bytes):
    """Counts those that are in memory."""

    alive: ClassVar[int] = 0

    def __del__(self) -> None:
        Body.alive -= 1


def read_only_app() -> Flask:
    app = Flask("read-only", static_folder=None)
    app.add_url_rule("/read", view_func=lambda: "ok", methods=["GET"])
    answer_with_problems(app)

    @app.get("/denied")
    def denied() -> str:
        raise Problem(403, "no")

    @app.errorhandler(Problem)
    def refuse(problem: Problem) -> Response:
        return problem.response()

    return app


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/read", HTTPStatus.OK),
        ("POST", "/read", HTTPStatus.METHOD_NOT_ALLOWED),
        ("POST", "/nowhere", HTTPStatus.NOT_FOUND),
        ("GET", "/denied", HTTPStatus.FORBIDDEN),
    ],
)
def test_a_request_goes_with_its_answer_without_the_garbage_collector(
    method: str, path: str, status: HTTPStatus
) -> None:
    """A body may have 32 MiB, and the collector counts objects, not their bytes."""
    handler = wsgi_handler(read_only_app(), "http")
    gc.disable()
    try:
        for _ in range(3):
            assert _answer_to(handler, method, path).status == status
        assert Body.alive == 0
    finally:
        gc.enable()


@pytest.mark.parametrize("status", [HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED])
def test_an_answer_without_a_body_is_not_sent_in_pieces(status: HTTPStatus) -> None:
    """Even the last, empty piece would stand before the connection's next answer."""
    app = Flask("empty", static_folder=None)
    app.add_url_rule("/", view_func=lambda: Response(status=status, headers={"Date": "now", "ETag": "x"}))

    answer = _answer_to(wsgi_handler(app, "http"), "GET", "/")

    assert answer == HttpAnswer(status, answer.content_type, b"", [("ETag", "x")])


def _answer_to(handler: Handler, method: str, path: str) -> HttpAnswer:
    reader = RequestReader(1_000)
    reader.buffer += f"{method} {path} HTTP/1.1\r\nHost: t\r\nContent-Length: 4\r\n\r\nbody".encode()
    found = reader.next()
    assert found is not None
    Body.alive += 1
    request = HttpRequest(found[0], Body(found[1]), ("", 1), ("", 2), lambda _answer: None)
    answer = handler(request)
    assert isinstance(answer, HttpAnswer)
    return answer
