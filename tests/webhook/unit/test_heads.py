"""The heads of answers, beside those that gunicorn itself writes."""

from http import HTTPStatus

import pytest
from gunicorn import http
from gunicorn.config import Config

from webhook.server.head_cache import Response, of_answer

KINDS = ("application/json", "text/plain; charset=utf-8")
STATUSES = (HTTPStatus.OK, HTTPStatus.BAD_REQUEST, HTTPStatus.SERVICE_UNAVAILABLE)


class Kept:
    """A socket that keeps what is written to it."""

    def __init__(self) -> None:
        self.written = b""

    def sendall(self, data: bytes) -> None:
        """Takes what is to be sent."""
        self.written += data


def without_date(head: bytes) -> list[bytes]:
    """The lines of a head but for its date."""
    return [line for line in head.split(b"\r\n") if not line.startswith(b"Date: ")]


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ends", [False, True])
def test_a_reviews_answer_has_the_head_that_gunicorn_would_give_it(
    status: HTTPStatus, kind: str, ends: bool
) -> None:
    asked = b"POST /mutate HTTP/1.1\r\nHost: x\r\n" + (b"Connection: close\r\n" if ends else b"") + b"\r\n"
    request = next(http.get_parser(Config(), [asked], ("127.0.0.1", 1)))
    kept = Kept()
    response = Response(request, kept, Config())
    response.start_response(
        f"{status.value} {status.phrase}", [("Content-Type", kind), ("Content-Length", "3")]
    )
    response.write(b"yes")

    head = of_answer(status, kind, 3, request.should_close())

    assert without_date(head + b"yes") == without_date(kept.written)
    assert head.count(b"\r\nDate: ") == 1
