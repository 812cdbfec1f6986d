"""Requests that are refused before or beside their routes, over real connections: each gets its answer."""

import http.client
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.timekeeper.fake_api_server import FakeApiServer, kubeconfig, serving
from tests.timekeeper.processes import Process, prepared
from tests.timekeeper.worlds import gpu_pod, pod_status, token
from timekeeper.api.http.body import LARGEST_BODY

MINE = token("p")
BEATS = b"POST /v1/heartbeats HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + MINE.encode() + b"\r\n"


@pytest.fixture(scope="module")
def timekeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    folder: Path = tmp_path_factory.mktemp("requests")
    api = FakeApiServer()
    api.tokens[MINE] = pod_status(gpu_pod("p"))
    with serving(api) as url, prepared(folder, kubeconfig(folder, url)) as process:
        process.start()
        process.wait("/livez", lambda: process.call("GET", "/livez")[0] == 200)
        yield process


def said(timekeeper: Process, sent: bytes) -> tuple[int, str | None, bytes]:
    """What is answered to these bytes: status, content type and body."""
    connection = timekeeper.connection()
    connection.connect()
    assert isinstance(connection.sock, ssl.SSLSocket)
    try:
        connection.sock.sendall(sent)
        answer = http.client.HTTPResponse(connection.sock, method="POST")
        answer.begin()
        return answer.status, answer.headers["Content-Type"], answer.read()
    finally:
        connection.close()


@pytest.mark.parametrize(("mine", "status"), [(MINE, 413), ("", 401)])
@pytest.mark.parametrize("length", [LARGEST_BODY + 1, 20_000_000])
def test_who_sends_too_much_can_send_it_all_and_then_reads_why_it_is_refused(
    timekeeper: Process, mine: str, status: int, length: int
) -> None:
    connection = timekeeper.connection()
    headers = {"Authorization": f"Bearer {mine}"} if mine else {}
    connection.request("POST", "/v1/heartbeats", b" " * length, headers)  # breaks where it is reset meanwhile
    answer = connection.getresponse()

    assert (answer.status, answer.headers["Content-Type"]) == (status, "application/problem+json")
    answer.read()
    connection.request("GET", "/livez")
    assert connection.getresponse().status == 200  # on the same connection
    connection.close()


def test_who_waits_to_be_told_to_go_on_is_refused_at_once(timekeeper: Process) -> None:
    status, _, body = said(timekeeper, BEATS + b"Content-Length: 5000000\r\nExpect: 100-continue\r\n\r\n")

    assert status == 413
    assert f"the body may have {LARGEST_BODY} bytes at most".encode() in body


def test_who_announces_a_body_and_never_sends_it_holds_no_thread_for_ever(timekeeper: Process) -> None:
    connection = timekeeper.connection()
    connection.timeout = 30
    connection.connect()
    assert isinstance(connection.sock, ssl.SSLSocket)
    connection.sock.sendall(BEATS + b"Content-Length: 5000000\r\n\r\n")
    answer = http.client.HTTPResponse(connection.sock, method="POST")
    answer.begin()
    assert answer.status == 413

    answer.read()
    assert connection.sock.recv(1) == b""  # closed by the server
    connection.close()


PIECE = b"10000\r\n" + b" " * 0x10000 + b"\r\n"


@pytest.mark.parametrize(
    ("body", "status", "detail"),
    [
        (b"zz\r\n", 400, b"the body cannot be read to its end"),
        (PIECE * 5 + b"0\r\n\r\n", 413, b"bytes at most"),
        (b"2\r\n{}\r\n0\r\n\r\n", 400, b"it must be 1"),
    ],
    ids=["no chunk", "too many", "good chunks"],
)
def test_a_body_in_chunks_is_read_within_the_same_bounds(
    timekeeper: Process, body: bytes, status: int, detail: bytes
) -> None:
    answer = said(timekeeper, BEATS + b"Transfer-Encoding: chunked\r\n\r\n" + body)

    assert answer[:2] == (status, "application/problem+json")
    assert detail in answer[2]


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GARBAGE\r\n\r\n", 400),
        (b"GET /livez HTTP/9.9\r\n\r\n", 400),
        (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET /livez HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 20_000 + b"\r\n\r\n", 431),
        (b"GET /livez HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 300 + b"\r\n", 431),
        (b"POST /livez HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: dance\r\n\r\n", 501),
        (b"POST /livez HTTP/1.1\r\nHost: x\r\nExpect: cake\r\nContent-Length: 1\r\n\r\n", 417),
    ],
)
def test_what_is_no_request_is_answered_as_a_problem_too(
    timekeeper: Process, sent: bytes, status: int
) -> None:
    answered, kind, body = said(timekeeper, sent)

    assert (answered, kind) == (status, "application/problem+json")
    assert f'"status":{status}'.encode() in body
    assert b"the request cannot be read: " in body
    assert f"event=malformed-request peer=127.0.0.1 status={status}" in timekeeper.log()


def test_none_of_this_is_logged_as_a_fault_of_ours(timekeeper: Process) -> None:
    said(timekeeper, BEATS + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n")

    assert "Traceback" not in timekeeper.log()
