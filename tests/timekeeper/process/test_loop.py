"""The server under slow, silent and eager clients, over real connections: one thread, and nobody waits for
them."""

import http.client
import io
import json
import os
import resource
import signal
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from deploy.local.limits import LONGEST_S
from tests.support.kubeconfig import kubeconfig
from tests.timekeeper.fake_api_server import FakeApiServer, serving
from tests.timekeeper.processes import Process, children, prepared, send
from tests.timekeeper.worlds import ADMIN, gpu_pod, lease, node, pod_status, token, user_status
from timekeeper.edge import http1
from timekeeper.edge.clock import now_ms

MANY = 20  # clients of a worker whose sibling has none


@pytest.fixture(scope="module")
def api() -> FakeApiServer:
    made = FakeApiServer()
    made.tokens[ADMIN] = user_status("admin")
    made.put("nodes", node())
    made.put("leases", lease(now_ms()))
    return made


@pytest.fixture(scope="module")
def timekeeper(api: FakeApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """One worker with one thread: who holds it is alone."""
    folder: Path = tmp_path_factory.mktemp("loop")
    with serving(api) as url, prepared(folder, kubeconfig(folder, url), "--threads=1") as process:
        process.start_ready()
        yield process


@pytest.fixture
def mine(api: FakeApiServer, timekeeper: Process, request: pytest.FixtureRequest) -> str:
    """The token of a pod that runs and that the ledger knows."""
    name = f"pod-{abs(hash(request.node.name)) % 10**9}"
    pod, bearer = gpu_pod(name, percent=1, bound_ms=now_ms(), started_ms=now_ms()), token(name, now_ms() * 2)
    api.tokens[bearer] = pod_status(pod)
    api.put("pods", pod)
    timekeeper.wait("the session", lambda: f"uid=uid-{name} " in timekeeper.log())
    return bearer


def beat(bearer: str, sequence: int, head: str = "") -> bytes:
    body = json.dumps(
        {"version": 1, "boot": "b", "sequence": sequence, "beats": [{"age_ms": 0, "devices": []}]}
    )
    return (
        f"POST /v1/heartbeats HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {bearer}\r\n{head}"
        f"Content-Length: {len(body)}\r\n\r\n{body}"
    ).encode()


def connected(timekeeper: Process, within_s: float = LONGEST_S) -> ssl.SSLSocket:
    connection = timekeeper.connection()
    connection.timeout = within_s
    connection.connect()
    assert isinstance(connection.sock, ssl.SSLSocket)
    return connection.sock


def answer(sock: ssl.SSLSocket) -> http.client.HTTPResponse:
    """The next answer, its body read."""
    response = http.client.HTTPResponse(sock, method="POST")
    response.begin()
    response.body = response.read()  # type: ignore[attr-defined]
    return response


def whole(stream: io.BufferedReader) -> tuple[int, bytes]:
    """Status and body of the next answer."""
    head = http1.head(stream)
    return head.status, http1.body(stream, head)


def is_served(timekeeper: Process, bearer: str, sequence: int) -> bool:
    """Whether others are answered: a route that takes a thread, and a heartbeat."""
    with connected(timekeeper) as sock:
        sock.sendall(beat(bearer, sequence))
        heartbeat = answer(sock).status
    return timekeeper.call("GET", "/livez")[0] == heartbeat == 200


def test_requests_sent_in_one_piece_are_answered_in_their_order(timekeeper: Process, mine: str) -> None:
    alive = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
    with connected(timekeeper) as sock, sock.makefile("rb") as stream:
        sock.sendall(
            beat(mine, 1) + beat(mine, 2) + alive + beat("x", 3) + beat(mine, 4) + beat(mine, 5) + alive
        )
        answers = [whole(stream) for _ in range(7)]

    assert [status for status, _ in answers] == [200, 200, 200, 401, 200, 200, 200]
    assert answers[2][1] == answers[6][1] == b"ok\n"


def test_many_at_once_are_each_answered_with_their_own(timekeeper: Process, mine: str) -> None:
    """Each posts its own count and a wrong one in turn, on its own connection."""
    found: dict[int, list[int]] = {}

    def post(number: int) -> None:
        with connected(timekeeper) as sock:
            for turn in range(20):
                sock.sendall(beat(mine if turn % 2 else "x", number * 100 + turn))
                found.setdefault(number, []).append(answer(sock).status)

    threads = [threading.Thread(target=post, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found == {number: [401, 200] * 10 for number in range(16)}


def test_a_client_that_wants_its_connection_closed_is_answered_and_closed(
    timekeeper: Process, mine: str
) -> None:
    with connected(timekeeper) as sock:
        sock.sendall(beat(mine, 1, head="Connection: close\r\n"))
        said = answer(sock)

        assert (said.status, said.headers["Connection"]) == (200, "close")
        assert sock.recv(1) == b""


def test_a_refusal_keeps_the_connection_and_says_how_to_go_on(timekeeper: Process, mine: str) -> None:
    with connected(timekeeper) as sock:
        sock.sendall(beat("x", 1))
        refused = answer(sock)
        sock.sendall(beat(mine, 1))
        taken = answer(sock)

    assert (refused.status, refused.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert refused.headers["Content-Type"] == "application/problem+json"
    assert taken.status == 200
    assert json.loads(taken.body)["interval_ms"] == 5_000  # type: ignore[attr-defined]


def test_two_tokens_are_none(timekeeper: Process, mine: str) -> None:
    with connected(timekeeper) as sock:
        sock.sendall(beat(mine, 1, head=f"Authorization: Bearer {mine}\r\n"))

        assert answer(sock).status == 401


@pytest.mark.parametrize("digits", ["0000000000000%d", "00000000000000000000%d"])
def test_a_length_with_zeros_before_it_is_the_same_length(
    timekeeper: Process, mine: str, digits: str
) -> None:
    head, _, body = beat(mine, 1).partition(b"\r\n\r\n")
    body += b" " * (60 - len(body) % 60)
    length = b"Content-Length: " + (digits % len(body)).encode()
    head = head[: head.index(b"Content-Length")] + length
    with connected(timekeeper) as sock, sock.makefile("rb") as stream:
        sock.sendall(head + b"\r\n\r\n" + body + beat(mine, 2))
        answers = [whole(stream) for _ in range(2)]

    assert [status for status, _ in answers] == [200, 200]


def test_junk_tokens_cost_no_question_and_a_pods_token_one_a_minute(
    timekeeper: Process, api: FakeApiServer, mine: str
) -> None:
    def asked() -> int:
        return sum(each["kind"] == "TokenReview" for each in api.reviews)

    before = asked()
    with connected(timekeeper) as sock:
        for sequence in range(20):
            for bearer in (mine, "x", token("late", 1_000_000), token("other", audience="other")):
                sock.sendall(beat(bearer, sequence))
                answer(sock)

    assert asked() == before + 1


def test_what_is_answered_is_counted(timekeeper: Process, mine: str) -> None:
    def counted() -> dict[str, float]:
        _, text = timekeeper.call("GET", "/metrics")
        lines = (line.rpartition(" ") for line in text.splitlines() if "v1/heartbeats" in line)
        return {name: float(value) for name, _, value in lines}

    name = 'bursar_requests_total{route="/v1/heartbeats",status="%s"}'
    with connected(timekeeper) as sock:
        before = counted()
        for bearer in (mine, "x"):
            sock.sendall(beat(bearer, 1))
            answer(sock)
        after = counted()

    for status in ("200", "401"):
        assert after[name % status] == before.get(name % status, 0) + 1


def test_a_worker_that_ends_answers_what_has_come(api: FakeApiServer, tmp_path: Path) -> None:
    pod = gpu_pod("last", percent=1, bound_ms=now_ms(), started_ms=now_ms())
    bearer = token("last", now_ms() * 2)
    api.tokens[bearer] = pod_status(pod)
    api.put("pods", pod)
    with serving(api) as url, prepared(tmp_path, kubeconfig(tmp_path, url)) as process:
        process.start()
        process.wait("the session", lambda: "uid=uid-last " in process.log())
        with connected(process) as sock:
            sock.sendall(beat(bearer, 1))
            assert answer(sock).headers["Connection"] == "keep-alive"
            assert process.running is not None
            process.running.terminate()
            words: list[str | None] = []
            while "close" not in words:  # requests are on their way all the time
                sock.sendall(beat(bearer, 2 + len(words)))
                said = answer(sock)
                assert said.status == 200
                words.append(said.headers["Connection"])
        assert process.running.wait(LONGEST_S) == 0


def test_more_clients_than_there_is_room_for_are_served_and_closed(
    api: FakeApiServer, tmp_path: Path
) -> None:
    pod = gpu_pod("crowd", percent=1, bound_ms=now_ms(), started_ms=now_ms())
    bearer = token("crowd", now_ms() * 2)
    api.tokens[bearer] = pod_status(pod)
    api.put("pods", pod)
    with serving(api) as url, prepared(tmp_path, kubeconfig(tmp_path, url)) as process, ExitStack() as stack:
        process.start()
        assert process.running is not None
        resource.prlimit(process.running.pid, resource.RLIMIT_NOFILE, (240, 240))  # 50 clients
        process.wait("the session", lambda: "uid=uid-crowd " in process.log())
        words = []
        for sequence in range(60):
            sock = stack.enter_context(connected(process))
            sock.sendall(beat(bearer, sequence))
            said = answer(sock)
            words.append((said.status, said.headers["Connection"]))
        for _ in range(30):  # who has the least time left makes room at once
            stack.enter_context(connected(process))

        assert words[:40] == [(200, "keep-alive")] * 40
        assert words[-1] == (200, "close")
        assert {status for status, _ in words} == {200}
        assert is_served(process, bearer, 1_000)


def test_connections_are_shared_among_the_workers(api: FakeApiServer, tmp_path: Path) -> None:
    with serving(api) as url, prepared(tmp_path, kubeconfig(tmp_path, url), "--workers=2") as process:
        process.start_ready()
        process.wait("both workers to accept", lambda: both_accept(process))
        process.wait("their connections to end", lambda: not any(held(process)))
        connections = [process.connection() for _ in range(40)]
        for connection in connections:
            assert send(connection, "GET", "/livez")[0] == 200

        shares = held(process)
        for connection in connections:
            connection.close()
        assert sum(shares) == 40
        assert min(shares) >= 10


def test_a_worker_that_hangs_keeps_no_client_from_the_others(api: FakeApiServer, tmp_path: Path) -> None:
    """It has fewer connections than they, and would go on having fewer until gunicorn kills it."""
    with serving(api) as url, prepared(tmp_path, kubeconfig(tmp_path, url), "--workers=2") as process:
        process.start_ready()
        process.wait("both workers", lambda: len(workers(process)) == 2)
        busy, hung = workers(process)
        os.kill(hung, signal.SIGSTOP)
        try:
            with ExitStack() as stack:
                for _ in range(MANY):
                    stack.enter_context(connected(process))  # whole, and its handshake done

                assert hung in workers(process)  # gunicorn has not killed it yet
                assert held_by(hung, process.port) == 0
                assert held_by(busy, process.port) == MANY
        finally:
            os.kill(hung, signal.SIGCONT)


def both_accept(process: Process) -> bool:
    """Of two connections at once each worker has one. /readyz answers as soon as the first worker serves."""
    with closing(process.connection()) as one, closing(process.connection()) as other:
        assert {send(each, "GET", "/livez")[0] for each in (one, other)} == {200}
        return held(process) == [1, 1]


def held(process: Process) -> list[int]:
    """The number of connections that each worker holds."""
    return [held_by(pid, process.port) for pid in workers(process)]


def workers(process: Process) -> list[int]:
    """The process IDs of the serving workers, gunicorn's children."""
    assert process.running is not None
    (master,) = children(process.running.pid)["workers"]
    return [pid for pids in children(master).values() for pid in pids]


def held_by(pid: int, port: int) -> int:
    """How many clients of the port a process holds."""
    inodes = set()
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[1].rpartition(":")[2], 16) == port and fields[3] == "01":  # established
            inodes.add(f"socket:[{fields[9]}]")
    links = (str(each.readlink()) for each in Path(f"/proc/{pid}/fd").iterdir() if each.is_symlink())
    return sum(link in inodes for link in links)
