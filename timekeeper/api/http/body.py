"""A request's body: whole, and within bounds."""

from flask import request

from timekeeper.api.problem import Problem

LARGEST_BODY = 256 * 1024  # the server reads no more of a request (`timekeeper/serving`)


def read_body() -> bytes:
    """The whole body. Raises a Problem: 413 if it is too large."""
    if (request.content_length or 0) > LARGEST_BODY:
        raise Problem(413, f"the body may have {LARGEST_BODY} bytes at most")
    return request.get_data(cache=False)
