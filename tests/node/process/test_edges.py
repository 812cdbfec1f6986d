"""The API server, Events and the port for metrics, where they go wrong."""

import contextlib
import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.local.identity import LocalAuthority, new_authority
from deploy.local.limits import LONGEST_S
from sidecar.node import metrics, run
from sidecar.node.kube.api import JSON, ApiAnswer, NodeApi, NodeLists
from sidecar.node.state.overuse import AgentEvent
from tests.support.events import sending
from tests.support.waiting import eventually
from timekeeper.edge.list_watch import watch
from timekeeper.edge.reflector import UnreachableError
from timekeeper.edge.source_health import STUCK_MS, SourceHealth


@pytest.fixture(scope="module")
def authority() -> LocalAuthority:
    return new_authority("api")


@pytest.fixture
def files(tmp_path: Path, authority: LocalAuthority) -> Path:
    (tmp_path / "ca").write_bytes(authority.pem)
    (tmp_path / "token").write_text("secret-token\n")
    return tmp_path


def unreached(api: NodeApi) -> str:
    with pytest.raises(UnreachableError) as raised:
        api.call("GET", "/api")
    with pytest.raises(UnreachableError):
        next(watch(NodeLists(api, JSON), "/api", "1"))
    return str(raised.value)


@pytest.mark.parametrize("missing", ["ca", "token"])
def test_files_that_are_missing_are_named_or_reported(files: Path, missing: str) -> None:
    (files / missing).unlink()
    said = unreached(NodeApi("https://127.0.0.1:1", str(files / "ca"), str(files / "token")))

    assert "No such file" in said


def test_a_failures_sentence_never_holds_the_token(files: Path) -> None:
    (files / "token").write_text("first\nsecret\n")
    said = unreached(NodeApi("https://127.0.0.1:1", str(files / "ca"), str(files / "token")))

    assert said == f"the token file {files / 'token'} holds no token"


class Server(NodeApi):
    """Answers in this way, or is away."""

    def __init__(self, *answers: ApiAnswer | str) -> None:
        self.answers = list(answers)
        self.bodies: list[Any] = []

    def call(self, method: str, path: str, body: object = None, *_: object, **__: object) -> ApiAnswer:
        self.bodies.append(body)
        answer = self.answers.pop(0)
        if isinstance(answer, str):
            raise UnreachableError(answer)
        return answer


def test_an_event_is_about_its_pod_or_about_the_node_and_waits_for_the_api_server() -> None:
    server = Server("away", ApiAnswer(201, {}, ""), ApiAnswer(403, None, "no"))
    events = run._events(server, "n1")

    with sending(events):
        run._post(events, "n1", AgentEvent("uid-1", "team-a", "p", "Warning", "GPUUnhealthy", "It fell."))
    with sending(events):
        run._post(events, "n1", AgentEvent("", "", "", "Warning", "GPUStranger", "It came."))

    pod = {"apiVersion": "v1", "kind": "Pod", "namespace": "team-a", "name": "p", "uid": "uid-1"}
    node = {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "n1"}
    assert [body["regarding"] for body in server.bodies] == [pod, pod, node]
    assert {(body["reportingController"], body["reportingInstance"]) for body in server.bodies} == {
        ("bursar.dev/node", "n1")
    }
    assert events.results() == {"posted": 1, "repeated": 0, "dropped": 0, "failed": 1}


@pytest.fixture(params=["127.0.0.1", "::1"])
def served(request: pytest.FixtureRequest) -> Iterator[tuple[metrics.MetricsPage, str, list[int]]]:
    """A board, its URL, and the clock."""
    now = [0]
    board = metrics.MetricsPage(lambda: now[0])
    try:
        server = metrics.serve(board, request.param, 0)
    except OSError:
        pytest.skip("no IPv6 here")
    host = f"[{request.param}]" if ":" in request.param else request.param
    yield board, f"http://{host}:{server.server_address[1]}", now
    server.shutdown()
    server.server_close()


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=LONGEST_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_what_is_not_followed_or_skipped_is_in_readyz_and_in_the_metrics() -> None:
    now_ms = 0
    health = SourceHealth("pods", lambda *_, **__: None, lambda: now_ms)
    board = metrics.MetricsPage(lambda: 0, (health,))
    board.show("", ready=True)
    health.failed("away")
    health.skip("u", {}, KeyError("x"))

    assert board.answer("/readyz") == (200, "ok\nwatch of pods: 1 objects are skipped\n")
    now_ms = STUCK_MS
    _, said = board.answer("/readyz")
    assert said.splitlines()[1] == "watch of pods: it has not got on since 1970-01-01T00:00:00.000Z"
    for code in ("watch-fails", "object-unread"):
        assert f'bursar_findings{{role="node",code="{code}"}} 1\n' in board.answer("/metrics")[1]


def test_the_port_serves_metrics_readiness_and_a_loop_that_stands_still(
    served: tuple[metrics.MetricsPage, str, list[int]],
) -> None:
    board, url, now = served
    assert get(f"{url}/readyz")[0] == 503
    assert get(f"{url}/livez") == (200, "ok\n")

    board.show("bursar_x 1\n", True)
    assert get(f"{url}/metrics?x=y") == (200, "bursar_x 1\n")
    assert get(f"{url}/readyz") == (200, "ok\n")
    now[0] = metrics.STUCK_MS + 1
    assert get(f"{url}/livez")[0] == 503
    assert get(f"{url}/")[0] == 404


def connected(url: str) -> socket.socket:
    """A connection over which half a request was sent."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    connection = socket.create_connection((host.strip("[]"), int(port)), timeout=LONGEST_S)
    connection.sendall(b"GET /metrics HTTP/1.1\r\n")
    return connection


def is_hung_up(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def threads() -> int:
    return sum("process_request_thread" in each.name for each in threading.enumerate())


def test_many_slow_readers_take_few_threads_and_exclude_no_other(
    served: tuple[metrics.MetricsPage, str, list[int]],
) -> None:
    _, url, _ = served
    before = threads()  # of other servers of this process
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(connected(url)) for _ in range(5 * metrics.MAX_AT_ONCE)]
        eventually(lambda: all(map(is_hung_up, slow[: -metrics.MAX_AT_ONCE])))

        eventually(lambda: threads() <= before + metrics.MAX_AT_ONCE)
        assert not any(map(is_hung_up, slow[-metrics.MAX_AT_ONCE :]))
        assert get(f"{url}/livez") == (200, "ok\n")
    eventually(lambda: threads() <= before)


def test_a_request_that_never_ends_is_hung_up_on_however_often_a_byte_comes() -> None:
    server = metrics.serve(metrics.MetricsPage(lambda: 0), "127.0.0.1", 0, request_s=0.2)
    with server, connected(f"http://127.0.0.1:{server.server_address[1]}") as slow:

        def goes_on() -> bool:
            if is_hung_up(slow):
                return False
            with contextlib.suppress(ConnectionError):  # then the next look tells
                slow.send(b"x")
            return True

        eventually(lambda: not goes_on())
        server.shutdown()


def test_a_client_that_hangs_up_costs_one_line(
    served: tuple[metrics.MetricsPage, str, list[int]], capfd: pytest.CaptureFixture[str]
) -> None:
    board, url, _ = served
    board.show("x" * (8 << 20), True)
    host, _, port = url.removeprefix("http://").rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port))) as hasty:
        hasty.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        hasty.recv(10)
        hasty.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    said: list[str] = []

    def told() -> bool:
        said.append(capfd.readouterr().err)
        return "scrape-failed" in "".join(said)

    eventually(told)
    assert "Traceback" not in "".join(said)
    assert json.dumps(get(f"{url}/livez")) == '[200, "ok\\n"]'
