"""The worker's loop and its pools, in a thread of this process, over plain HTTP."""

import http.client
import logging
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

import pytest
from gunicorn.config import Config

from tests.support.kernel_sockets import untaken
from tests.support.waiting import eventually
from timekeeper.runtime.http import acceptor, loop
from timekeeper.runtime.http.acceptor import LEFT_TO_OTHERS_S, SEND_BUFFER_BYTES, ConnectionBalance
from timekeeper.runtime.http.connection import HttpConnection
from timekeeper.runtime.http.loop import RECEIVES_A_TURN, HttpLoop
from timekeeper.runtime.http.server import HttpWorker
from timekeeper.runtime.http.service import Handler, HttpAnswer, HttpLimits, HttpRequest, HttpService, Route

WITHIN_S = 60.0
LIMITS = HttpLimits(body_bytes=1_000_000, connections=20)
MEBIBYTE = 2**20


def ok(request: HttpRequest) -> HttpAnswer:
    """The body back."""
    return HttpAnswer(HTTPStatus.OK, "text/plain", request.body)


class App:
    """A WSGI application that streams ``pieces``, or shows what it was asked."""

    def __init__(self) -> None:
        self.pieces: Iterable[bytes] | None = None
        self.closed = threading.Event()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if self.pieces is not None:
            start_response("200 OK", [("Content-Type", "text/csv")])
            return Pieces(self)
        start_response("201 Created", [("X-More", "1")])
        body = environ["wsgi.input"].read().decode()
        keys = ("REQUEST_METHOD", "PATH_INFO", "QUERY_STRING", "HTTP_X_TWICE")
        shown = (environ.get(key, "") for key in keys)
        return ["|".join((*shown, environ["CONTENT_LENGTH"], body)).encode()]


class Pieces:
    """What a streaming application returns."""

    def __init__(self, app: App) -> None:
        self._app = app

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._app.pieces or ())

    def close(self) -> None:
        """Called by the server at the end, however it came."""
        self._app.closed.set()


@contextmanager
def serving(*routes: Route, app: Any = None, **options: Any) -> Iterator[SimpleNamespace]:
    """A worker with these routes; its ``port``, ``app`` and ``balance``."""
    balance = ConnectionBalance()
    service = HttpService(app or App(), 2, options.pop("limits", LIMITS), routes, **options)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        served = SimpleNamespace(service=service, balance=balance)
        log: Any = logging.getLogger("a worker")
        worker = HttpWorker(1, os.getppid(), [listener], served, 30, Config(), log)
        worker.PIPE = os.pipe()
        for end in worker.PIPE:
            os.set_blocking(end, False)
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            yield SimpleNamespace(port=listener.getsockname()[1], app=service.app, balance=balance)
        finally:
            worker.alive = False
            os.write(worker.PIPE[1], b".")
            thread.join()
            for end in worker.PIPE:
                os.close(end)
            worker.tmp.close()


@contextmanager
def connected(server: SimpleNamespace) -> Iterator[http.client.HTTPConnection]:
    client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WITHIN_S)
    try:
        yield client
    finally:
        client.close()


def plain_socket(server: SimpleNamespace, timeout_s: float = WITHIN_S) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=timeout_s)


def ask(
    client: http.client.HTTPConnection, method: str, path: str, body: bytes | None = None
) -> tuple[int, bytes]:
    client.request(method, path, body)
    answer = client.getresponse()
    return answer.status, answer.read()


def slow(request: HttpRequest) -> HttpAnswer:
    """Waits."""
    time.sleep(0.2)
    return ok(request)


def later(request: HttpRequest) -> None:
    """Replies from a thread of its own."""
    threading.Timer(0.05, lambda: request.reply(ok(request))).start()


def in_the_pool(request: HttpRequest) -> Handler:
    """Goes on in the pool, and replies from there later."""
    assert threading.current_thread().name != "http"
    return later


RELEASED = threading.Event()  # of the calls that are held in the pool


def held(request: HttpRequest) -> HttpAnswer:
    """Waits until a test releases it."""
    assert RELEASED.wait(WITHIN_S)
    return ok(request)


ROUTES = (
    Route("POST", "/inline", ok),
    Route("POST", "/pooled", slow, threads=1),
    Route("POST", "/later", later),
    Route("POST", "/pool-later", in_the_pool),
)


@pytest.fixture
def no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop is woken by clients and threads alone."""
    monkeypatch.setattr(loop, "_CLOCK_EVERY_S", 60.0)


@pytest.mark.usefixtures("no_clock")
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_requests_are_answered_in_order_however_they_are_answered(route: Route) -> None:
    request = b"POST %b HTTP/1.1\r\nContent-Length: 2\r\n\r\n" % route.path.encode()
    with serving(*ROUTES) as server, plain_socket(server) as client:
        client.sendall(b"".join(request + b"%02d" % number for number in range(3)))
        received = b""
        while received.count(b"\r\n\r\n") < 3 or not received.endswith(b"02"):
            received += client.recv(65_536)

    assert [each[:2] for each in received.split(b"\r\n\r\n")[1:]] == [b"00", b"01", b"02"]


def test_a_pool_that_is_busy_keeps_no_other_route_waiting() -> None:
    with serving(*ROUTES, Route("POST", "/held", held, threads=1)) as server, ExitStack() as stack:
        pooled = [stack.enter_context(connected(server)) for _ in range(4)]
        for busy in pooled:
            busy.request("POST", "/held", b"x")

        client = stack.enter_context(connected(server))
        assert ask(client, "POST", "/inline", b"y") == (200, b"y")
        assert ask(client, "GET", "/app?a=1")[0] == 201
        RELEASED.set()
        assert [busy.getresponse().read() for busy in pooled] == [b"x"] * 4


def posted(path: str, body: bytes = b"") -> bytes:
    return b"POST %b HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (path.encode(), len(body), body)


def answers(client: socket.socket, last: bytes) -> list[bytes]:
    """The bodies of two bytes each, up to the last one."""
    received = b""
    while not received.endswith(b"\r\n\r\n" + last):
        received += client.recv(65_536)
    return [each[:2] for each in received.split(b"\r\n\r\n")[1:]]


@pytest.mark.usefixtures("no_clock")
@pytest.mark.parametrize("pause_s", [None, 0.0, 0.05], ids=["together", "in a row", "before the answer"])
def test_a_thread_wakes_the_loop_where_the_client_has_sent_more(pause_s: float | None) -> None:
    requests = [posted("/pooled", b"%02d" % number) for number in range(3)]
    with serving(*ROUTES) as server, plain_socket(server) as client:
        for each in [b"".join(requests)] if pause_s is None else requests:
            client.sendall(each)
            time.sleep(pause_s or 0)
        assert answers(client, b"02") == [b"00", b"01", b"02"]


@pytest.mark.usefixtures("no_clock")
def test_a_thread_that_answers_while_the_loop_looks_at_the_next_request_loses_no_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, released, met = threading.Event(), threading.Event(), threading.Event()
    wait_for = HttpLoop._wait_for

    def waits(request: HttpRequest) -> HttpAnswer:
        begun.set()
        assert released.wait(WITHIN_S)
        return ok(request)

    def after_the_thread(self: HttpLoop, connection: HttpConnection, events: int) -> None:
        if connection.busy and not events:
            released.set()
            eventually(lambda: self._replies._waiting, "the thread's answer")
            met.set()
        wait_for(self, connection, events)

    monkeypatch.setattr(HttpLoop, "_wait_for", after_the_thread)
    with serving(Route("POST", "/waits", waits, threads=1)) as server, plain_socket(server) as client:
        client.sendall(posted("/waits", b"00"))
        assert begun.wait(WITHIN_S)
        client.sendall(posted("/waits", b"01"))
        assert answers(client, b"01") == [b"00", b"01"]
        assert met.is_set()


@pytest.mark.usefixtures("no_clock")
def test_a_thread_wakes_the_loop_for_the_end_of_a_connection_and_for_what_is_unsent() -> None:
    large = HttpLimits(body_bytes=8 * MEBIBYTE, connections=20)
    with serving(*ROUTES, limits=large) as server, plain_socket(server) as client:
        client.sendall(posted("/pooled", b"x" * (8 * MEBIBYTE)))
        time.sleep(0.5)  # the thread has sent what the socket takes
        received = 0
        while received < 8 * MEBIBYTE:
            received += len(client.recv(MEBIBYTE))
        client.sendall(posted("/pooled", b"yy").replace(b"/1.1\r\n", b"/1.1\r\nConnection: close\r\n"))
        assert b"".join(iter(lambda: client.recv(MEBIBYTE), b"")).endswith(b"\r\n\r\nyy")


def test_a_connection_that_a_thread_has_answered_is_closed_when_it_stays_idle() -> None:
    with (
        serving(*ROUTES, limits=HttpLimits(1_000, 20, keep_alive_s=0.1)) as server,
        plain_socket(server) as client,
    ):
        client.sendall(posted("/pooled", b"00"))
        assert b"".join(iter(lambda: client.recv(65_536), b"")).endswith(b"00")


def test_the_application_is_called_with_the_whole_request() -> None:
    with (
        serving() as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=WITHIN_S) as client,
    ):
        client.sendall(
            b"POST /a%20b/%C3%BC?q=%20 HTTP/1.0\r\nX-Twice: 1\r\nX-Twice: 2\r\nContent-Length: 3\r\n\r\nabc"
        )
        received = b""
        while part := client.recv(65_536):
            received += part

    head, _, body = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 201 Created\r\n")
    assert b"Connection: close" in head
    assert b"X-More: 1" in head
    assert body.decode() == "POST|/a b/Ã¼|q=%20|1,2|3|abc"


def test_an_answer_without_a_body_leaves_the_connection_to_the_next_one() -> None:
    """As Flask answers 304: with an iterable of no pieces, and without a length."""

    def unchanged(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        start_response("304 Not Modified", [("ETag", "x")])
        return iter(())

    request = b"GET /x HTTP/1.1\r\nHost: t\r\n\r\n"
    with serving(app=unchanged) as server, plain_socket(server) as client:
        client.sendall(request + request.replace(b"/1.1\r\n", b"/1.1\r\nConnection: close\r\n"))
        received = b"".join(iter(lambda: client.recv(65_536), b""))

    first, second, rest = received.split(b"\r\n\r\n")
    assert [each.split(b"\r\n")[0] for each in (first, second)] == [b"HTTP/1.1 304 Not Modified"] * 2
    assert rest == b""


def test_an_answer_in_pieces_is_sent_while_it_is_made() -> None:
    app, taken = App(), threading.Event()

    def pieces() -> Iterator[bytes]:
        yield b"first,"
        yield b""  # no end of the answer
        assert taken.wait(WITHIN_S)
        yield b"second"

    app.pieces = pieces()
    with serving(app=app) as server, ExitStack() as stack:
        client = stack.enter_context(connected(server))
        client.request("GET", "/report")
        answer = client.getresponse()
        assert answer.read(6) == b"first,"
        taken.set()
        assert answer.read() == b"second"
        assert app.closed.wait(WITHIN_S)
        app.pieces = None
        assert ask(client, "GET", "/")[0] == 201  # the connection is kept


def test_of_an_answer_that_is_not_read_little_is_in_memory_and_one_that_is_left_is_closed() -> None:
    app, made = App(), 0

    def pieces() -> Iterator[bytes]:
        nonlocal made
        for _ in range(1_000):
            made += 1
            yield b"x" * MEBIBYTE

    app.pieces = pieces()
    with serving(app=app) as server, ExitStack() as stack:
        client = stack.enter_context(connected(server))
        client.request("GET", "/report")
        client.getresponse().read(1)
        time.sleep(0.3)
        assert made < 50
        client.close()
        assert app.closed.wait(WITHIN_S)


def fails(request: HttpRequest) -> HttpAnswer:
    """A defect."""
    raise ValueError("a defect")


def exits(request: HttpRequest) -> HttpAnswer:
    """As a library may that gives up."""
    raise SystemExit


def test_a_handler_that_fails_is_a_500_and_one_that_exits_leaves_its_thread() -> None:
    routes = (Route("POST", "/fails", fails), Route("POST", "/pool-fails", fails, threads=1))
    with serving(*routes, Route("POST", "/exits", exits, threads=1)) as server, ExitStack() as stack:
        client = stack.enter_context(connected(server))
        for _ in range(3):
            assert ask(client, "POST", "/fails")[0] == 500
            assert ask(client, "POST", "/pool-fails")[0] == 500
            with pytest.raises((http.client.HTTPException, ConnectionError)):
                ask(client, "POST", "/exits")


@pytest.mark.parametrize("pieces", [RECEIVES_A_TURN - 1, RECEIVES_A_TURN, 3 * RECEIVES_A_TURN])
def test_a_body_larger_than_what_a_turn_receives_is_received(pieces: int) -> None:
    body = b"x" * (pieces * 1024)
    with serving(*ROUTES) as server, ExitStack() as stack:
        client = stack.enter_context(connected(server))
        assert ask(client, "POST", "/inline", body) == (200, body)


def test_a_client_that_does_not_read_keeps_no_other_waiting() -> None:
    request = b"POST /inline HTTP/1.1\r\nContent-Length: 900000\r\n\r\n" + b"x" * 900_000
    with serving(*ROUTES) as server, ExitStack() as stack:
        for _ in range(3):
            deaf = stack.enter_context(plain_socket(server, 0.5))
            with pytest.raises(TimeoutError):
                deaf.sendall(request * 100)

        client = stack.enter_context(connected(server))
        assert ask(client, "POST", "/inline", b"y") == (200, b"y")


def test_when_few_more_clients_fit_in_they_are_closed_after_their_answer() -> None:
    with serving(*ROUTES) as server, ExitStack() as stack:
        said = []
        for _ in range(40):
            client = stack.enter_context(connected(server))
            client.request("POST", "/inline", b"x")
            answer = client.getresponse()
            answer.read()
            said.append(answer.headers["Connection"])

    assert said[:18] == ["keep-alive"] * 18
    assert said[-1] == "close"


def test_connections_are_closed_where_another_replica_should_serve_them() -> None:
    with serving(*ROUTES, ends_connections=lambda: True) as server, ExitStack() as stack:
        client = stack.enter_context(connected(server))
        client.request("POST", "/inline", b"x")
        assert client.getresponse().headers["Connection"] == "close"


def test_a_client_that_another_worker_should_accept_is_left_to_it_for_a_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And accepted after it if the other worker hangs."""
    waits = []

    class Selector(selectors.DefaultSelector):
        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            waits.append(timeout)
            return super().select(timeout)

    monkeypatch.setattr(selectors, "DefaultSelector", Selector)
    with serving(*ROUTES) as server, ExitStack() as stack:
        first = stack.enter_context(connected(server))
        assert ask(first, "POST", "/inline", b"x")[0] == 200
        server.balance.set(2, 0)
        for _ in range(3):
            client = stack.enter_context(connected(server))
            assert ask(client, "POST", "/inline", b"x")[0] == 200
    assert waits.count(LEFT_TO_OTHERS_S) == 3


def test_a_client_that_goes_on_sending_after_a_rejection_is_closed() -> None:
    with serving(*ROUTES) as server, plain_socket(server) as client:
        client.sendall(b"hello\r\n\r\n")
        assert client.recv(65_536).startswith(b"HTTP/1.1 400 ")
        with pytest.raises(ConnectionError):
            send_for_ever(client)


def send_for_ever(client: socket.socket) -> None:
    while True:
        client.sendall(b"x" * 1_000)
        time.sleep(0.05)


LARGE = 300_000


def large(request: HttpRequest) -> HttpAnswer:
    """As much as a document of the API has, of its own."""
    return HttpAnswer(HTTPStatus.OK, "text/plain", bytes(LARGE))


def deaf(server: SimpleNamespace, requests: bytes) -> socket.socket:
    """A client that has sent these and takes few bytes of the answers, for it does not read."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", server.port))
    client.sendall(requests)
    return client


def test_clients_that_send_ahead_and_do_not_read_hold_no_more_than_the_bound() -> None:
    """Of each the kernel keeps little; the server keeps the rest, of as many as fit into the bound."""
    little = 16 * 1024  # a client's kernel takes as much before it reads
    limits = HttpLimits(body_bytes=1_000, connections=100, unanswered_bytes=8 * MEBIBYTE)
    with serving(Route("POST", "/large", large), *ROUTES, limits=limits) as server, ExitStack() as stack:
        client = stack.enter_context(connected(server))
        for _ in range(60):
            stack.enter_context(deaf(server, posted("/large") * 20))
            assert ask(client, "POST", "/inline", b"y") == (200, b"y")
            held = len(untaken(server.port)) - 1
            assert held * (LARGE - little) <= limits.unanswered_bytes
        assert max(untaken(server.port)) <= 2 * SEND_BUFFER_BYTES
        assert ask(client, "POST", "/large") == (200, bytes(LARGE))


@pytest.mark.parametrize("threads", [0, 1])
def test_the_next_request_is_read_once_the_answer_before_it_has_left(threads: int) -> None:
    answered = 0

    def count(request: HttpRequest) -> HttpAnswer:
        nonlocal answered
        answered += 1
        return HttpAnswer(HTTPStatus.OK, "text/plain", bytes(2_000))

    with serving(Route("POST", "/counted", count, threads), *ROUTES) as server, ExitStack() as stack:
        stack.enter_context(deaf(server, posted("/counted") * 200))
        client = stack.enter_context(connected(server))
        for _ in range(200):
            assert ask(client, "POST", "/inline", b"y") == (200, b"y")
        assert 0 < answered < 20


def test_one_large_answer_that_many_take_is_counted_once() -> None:
    body = bytes(4 * MEBIBYTE)
    limits = HttpLimits(body_bytes=1_000, connections=40, unanswered_bytes=12 * MEBIBYTE)
    route = Route("POST", "/shared", lambda _: HttpAnswer(HTTPStatus.OK, "text/plain", body))
    with serving(route, limits=limits) as server, ExitStack() as stack:
        clients = [stack.enter_context(connected(server)) for _ in range(20)]
        for client in clients:
            client.request("POST", "/shared")
        assert {client.getresponse().read() for client in clients} == {body}


def test_a_client_that_takes_nothing_for_long_is_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptor, "_TAKES_WITHIN_MS", 200)
    with serving(Route("POST", "/large", large)) as server, ExitStack() as stack:
        client = stack.enter_context(deaf(server, posted("/large")))
        eventually(lambda: not untaken(server.port), "the connection to be reset")
        with pytest.raises(ConnectionError):
            read_for_ever(client)


def test_an_answer_in_pieces_ends_for_a_client_that_takes_nothing_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(acceptor, "_TAKES_WITHIN_MS", 200)
    app = App()
    app.pieces = [b"x" * MEBIBYTE] * 100
    with serving(app=app) as server, deaf(server, b"GET /report HTTP/1.1\r\n\r\n"):
        assert app.closed.wait(WITHIN_S)


def read_for_ever(client: socket.socket) -> None:
    while True:
        assert client.recv(65_536)


def test_of_a_server_that_stops_the_kernel_keeps_nothing_for_a_client_that_does_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop, "LINGER_S", 0.1)
    with ExitStack() as stack:
        with serving(Route("POST", "/large", large)) as server:
            stack.enter_context(deaf(server, posted("/large")))
            eventually(lambda: sum(untaken(server.port)) > 0, "the answer")
        assert not untaken(server.port)


@pytest.mark.parametrize("ends", ["close", "half closed", "idle"])
def test_a_client_gets_the_whole_answer_however_the_connection_ends(
    ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes it slowly, while the times for it to go on or to leave run out."""
    monkeypatch.setattr(loop, "_CLOCK_EVERY_S", 0.0)
    monkeypatch.setattr(loop, "_LAST_ANSWER_S", 0.0)
    limits = HttpLimits(body_bytes=1_000, connections=20, keep_alive_s=0.0)
    request = posted("/large")
    if ends == "close":
        request = request.replace(b"/1.1\r\n", b"/1.1\r\nConnection: close\r\n")
    with serving(Route("POST", "/large", large), *ROUTES, limits=limits) as server, ExitStack() as stack:
        client = stack.enter_context(deaf(server, request))
        if ends == "half closed":
            client.shutdown(socket.SHUT_WR)
        for _ in range(3):
            assert ask(stack.enter_context(connected(server)), "POST", "/inline", b"y") == (200, b"y")
        received = b"".join(iter(lambda: client.recv(65_536), b""))
    assert received.endswith(b"\r\n\r\n" + bytes(LARGE))


def test_a_client_that_leaves_while_its_last_answer_is_sent_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop, "_CLOCK_EVERY_S", 0.0)
    monkeypatch.setattr(loop, "_LAST_ANSWER_S", 0.0)
    with serving(Route("POST", "/large", large)) as server:
        with deaf(server, posted("/large")) as client:
            client.shutdown(socket.SHUT_WR)
            eventually(lambda: sum(untaken(server.port)) > 0, "the answer")
        eventually(lambda: server.balance.another_has_fewer(1), "the server to have no connection")


def test_a_body_that_is_sent_is_no_longer_held() -> None:
    ours, theirs = socket.socketpair()
    connection = HttpConnection(ours, ("", 0), 1024, 0.0)
    connection.compose(HttpAnswer(HTTPStatus.OK, "text/plain", b"x"), False)
    connection.send()
    assert not connection.rest.obj
    ours.close()
    theirs.close()
