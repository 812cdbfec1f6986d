"""A request's body: read whole and within bounds, or thrown away within bounds."""

import time
from collections.abc import Mapping
from typing import IO, Any

from flask import request

from timekeeper.api.problem import Problem, bad

LARGEST_BODY = 256 * 1024

_MOST_DRAINED = 32 * 1024 * 1024
_DRAINED_WITHIN_S = 3.0
_PIECE = 64 * 1024


def read_body() -> bytes:
    """The whole body. Raises a Problem: 413 where it is too large, 400 where it breaks off."""
    stream: IO[bytes] = request.environ["wsgi.input"]
    length = request.content_length or 0
    if length > LARGEST_BODY:
        raise _too_large()
    try:
        body = stream.read(LARGEST_BODY + 1)
    except Exception as error:  # whatever the server says of a body that it cannot read is about the body
        raise bad("", "the body cannot be read to its end") from error
    if len(body) > LARGEST_BODY:
        raise _too_large()
    if len(body) < length:
        raise bad("", "the body is shorter than its Content-Length")
    return body


def drain(environ: Mapping[str, Any]) -> None:
    """Throw away what is left of the body once the answer is sent.

    Who is refused early goes on sending, and reads the answer after that: a connection that is closed before
    is reset, and the answer lost with it. So some of it is taken for its sake, for some time; the server
    closes the connection where that was not all.
    """
    connection, stream = environ.get("gunicorn.socket"), environ["wsgi.input"]
    if connection is None:
        return
    left, until = _MOST_DRAINED, time.monotonic() + _DRAINED_WITHIN_S
    try:
        while left > 0 and (remaining_s := until - time.monotonic()) > 0:
            connection.settimeout(remaining_s)
            piece = stream.read(_PIECE)
            if not piece:
                break
            left -= len(piece)
    except Exception:  # the answer is sent: how the rest breaks is nobody's concern
        return
    finally:
        connection.settimeout(None)


def _too_large() -> Problem:
    return Problem(413, f"the body may have {LARGEST_BODY} bytes at most")
