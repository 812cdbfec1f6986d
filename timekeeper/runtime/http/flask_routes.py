"""Handlers of posted bodies, as routes of Flask too, for any other WSGI server. Our worker calls them without
Flask, whose way to a view and back costs more than many answers do."""

from collections.abc import Callable, Mapping
from functools import partial

from flask import Flask, Response, request

from timekeeper.runtime.http.service import HttpAnswer

PostCall = Callable[[bytes], HttpAnswer]


def add_calls(app: Flask, calls: Mapping[str, PostCall]) -> None:
    """Adds POST routes, by their paths."""
    for path, call in calls.items():
        app.add_url_rule(path, path, partial(_response, call), methods=["POST"])


def _response(call: PostCall) -> Response:
    answer = call(request.get_data(cache=False))
    return Response(answer.body, answer.status, content_type=answer.content_type)
