"""What a worker's loop serves, without its sockets: routes, and the WSGI application for all other paths."""

from collections.abc import Sequence
from queue import Queue
from typing import TYPE_CHECKING, Any

from werkzeug import Request, Response
from werkzeug.test import Client

from deploy.local.limits import LONGEST_S
from timekeeper.runtime.http.framing import RequestHead
from timekeeper.runtime.http.queues import HandlerPools
from timekeeper.runtime.http.service import HttpAnswer, HttpLimits, HttpRequest, HttpService, Route

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication

HERE = ("127.0.0.1", 1)


def client_of(app: "WSGIApplication", routes: Sequence[Route]) -> Client:
    """A client of both."""
    return Client(routed(app, routes))


def routed(app: "WSGIApplication", routes: Sequence[Route]) -> "WSGIApplication":
    """Both as one WSGI application, for clients that need one. It finds a handler as the loop does, calls it
    in the caller's thread, and waits for its reply."""
    service = HttpService(app, 1, HttpLimits(1 << 25), routes)
    pools = HandlerPools(service)
    paths = {each.path for each in routes}

    def call(environ: dict[str, Any], start_response: "StartResponse") -> Any:
        if environ["PATH_INFO"] not in paths:
            return app(environ, start_response)
        replies: Queue[HttpAnswer] = Queue()
        request = _request(Request(environ), replies)
        answer: Any = pools.find(request.head.method, request.head.path).handler(request)
        while callable(answer):
            answer = answer(request)
        answer = answer or replies.get(timeout=LONGEST_S)
        response = Response(answer.body, answer.status, [*answer.headers], content_type=answer.content_type)
        return response(environ, start_response)

    return call


def _request(sent: Request, replies: "Queue[HttpAnswer]") -> HttpRequest:
    lines = tuple((name, value) for name, value in sent.headers)
    fields = {name.upper(): value for name, value in lines}
    query = sent.query_string.decode()
    head = RequestHead(sent.method, sent.path, query, sent.path, (1, 1), fields, lines, False, False)
    return HttpRequest(head, sent.get_data(), HERE, HERE, replies.put)
