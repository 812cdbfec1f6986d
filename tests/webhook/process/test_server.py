"""The webhook as it runs: processes, TLS, a timekeeper to ask, and clients of every kind."""

import http.client
import os
import signal
import socket
import ssl
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Any

import orjson
import pytest

from deploy.local.limits import LONGEST_S
from deploy.local.ports import free_port
from tests.support.simulated_timekeeper import SimulatedTimekeeper, entry, standings
from tests.support.tls import Tls
from tests.support.waiting import eventually
from tests.webhook.floods import floods
from tests.webhook.servers import ROOT, Webhook, environment, runs
from tests.webhook.worlds import admitted, half, patch_of, review_of
from tests.worlds import Json, container
from timekeeper.core.certificate_end import ends
from timekeeper.runtime.http.loop import RECEIVES_A_TURN
from webhook.server.review_endpoint import LIMITS

LARGEST_BACKLOG = LIMITS.unanswered_bytes
GOOD = orjson.dumps(review_of(admitted(half())))


@pytest.fixture(scope="module")
def timekeeper(tls: Tls) -> Iterator[SimulatedTimekeeper]:
    """A timekeeper."""
    with SimulatedTimekeeper(tls) as running:
        yield running


@pytest.fixture(scope="module")
def webhook(
    tmp_path_factory: pytest.TempPathFactory, tls: Tls, timekeeper: SimulatedTimekeeper
) -> Iterator[Webhook]:
    """A webhook of two workers that asks that timekeeper."""
    timekeeper.document = standings()
    with Webhook(tmp_path_factory.mktemp("webhook"), tls, timekeeper.url) as running:
        yield running


def standing_of(response: Json) -> str:
    """The standing that a pod was governed with."""
    return str(response["auditAnnotations"]["standing"])


def test_a_good_pod_is_governed(webhook: Webhook) -> None:
    response = webhook.review("/mutate", admitted(half()))

    assert response["allowed"] is True
    paths = [each["path"] for each in patch_of(response)]
    assert paths[:2] == ["/metadata/labels", "/metadata/annotations"]
    sidecar = patch_of(response)[-1]["value"][0]
    assert {"name": "BURSAR_CA", "value": webhook.tls.ca.bundle.decode()} in sidecar["env"]


def test_a_malformed_pod_is_refused(webhook: Webhook) -> None:
    for path in ("/mutate", "/validate"):
        response = webhook.review(path, admitted(container(gpu_percent="150")))

        assert response["allowed"] is False
        assert response["status"]["code"] == 403
        assert "a multiple of 100" in response["status"]["message"]


def test_every_worker_gets_a_changed_standing(webhook: Webhook, timekeeper: SimulatedTimekeeper) -> None:
    timekeeper.document = standings(revision="turned", team_a=entry("OVER_BUDGET"))

    def all_over() -> bool:
        return {standing_of(webhook.review("/mutate", admitted(half()))) for _ in range(8)} == {"OVER_BUDGET"}

    eventually(all_over, "the standing to turn in every worker")

    timekeeper.document = standings()


def test_the_timekeeper_is_asked_with_the_token_and_what_is_known_already(
    webhook: Webhook, timekeeper: SimulatedTimekeeper
) -> None:
    heard = len(timekeeper.answered)
    eventually(lambda: 304 in timekeeper.answered[heard:], "a poll that finds nothing new")

    last = timekeeper.asked[-1]
    assert last["path"] == "/v1/standings"
    assert last["authorization"] == "Bearer the-token"
    assert last["if-none-match"].startswith('"')


def test_many_kept_alive_connections_are_answered_at_once(webhook: Webhook) -> None:
    def creator(number: int) -> set[int]:
        connection = webhook.connection()
        statuses = set()
        for _ in range(30):
            connection.request("POST", "/mutate?timeout=5s", GOOD, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            statuses.add(answer.status)
            assert orjson.loads(answer.read())["response"]["allowed"] is True
        connection.close()
        return statuses

    with ThreadPoolExecutor(8) as pool:
        assert set().union(*pool.map(creator, range(8))) == {200}


def test_a_client_that_wants_no_more_is_answered_and_the_connection_ends(webhook: Webhook) -> None:
    request = b"POST /mutate HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s"
    for _ in range(2):
        with tls_socket(webhook) as client:
            client.sendall(request % (len(GOOD), GOOD))
            received = b""
            while taken := client.recv(65_536):  # until it ends
                received += taken

        assert received.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"\r\nConnection: close\r\n" in received


def test_an_expectation_is_met_each_time(webhook: Webhook) -> None:
    request = b"POST /mutate HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n%s"
    with tls_socket(webhook) as client:
        for _ in range(2):
            client.sendall(request % (len(GOOD), GOOD))
            received = b""
            while not received.endswith(b"}"):
                received += client.recv(65_536)

            assert received.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")


def test_new_clients_go_to_the_worker_that_has_fewer(webhook: Webhook) -> None:
    """They stay with the worker that took them: an API server's few connections must not all meet one."""
    eventually(lambda: len(webhook.workers()) == 2, "both workers")
    busy, idle = webhook.workers()
    before = sockets(idle)
    with ExitStack() as stack:
        os.kill(idle, signal.SIGSTOP)
        try:
            for _ in range(30):
                connect(webhook, stack)
        finally:
            os.kill(idle, signal.SIGCONT)
        assert sockets(busy) >= 30

        for _ in range(30):
            connect(webhook, stack)

        assert sockets(idle) - before > 20  # by chance alone it were fifteen


def connect(webhook: Webhook, stack: ExitStack) -> None:
    """Opens a connection that stays open until the stack's end."""
    connection = webhook.connection()
    stack.callback(connection.close)
    connection.request("GET", "/livez")
    connection.getresponse().read()


def sockets(pid: int) -> int:
    """How many a process has open."""
    listed = subprocess.run(["ls", "-l", f"/proc/{pid}/fd"], capture_output=True, text=True).stdout
    return listed.count("socket:")


def test_many_large_unfinished_requests_are_held_up_to_a_budget_and_delay_no_other(
    tmp_path: Path, tls: Tls, timekeeper: SimulatedTimekeeper
) -> None:
    length = 8 * 1024 * 1024
    request = b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (
        length,
        b" " * (length - 1),
    )
    with Webhook(tmp_path, tls, timekeeper.url, workers=1) as webhook, ExitStack() as stack:
        (worker,) = webhook.workers()
        peak, open_before = peak_bytes(worker), sockets(worker)

        def unfinished(_: int) -> int:
            client = stack.enter_context(tls_socket(webhook))
            try:
                client.sendall(request)
            except OSError:
                return 0  # ended on the way
            return len(request)

        with ThreadPoolExecutor(4) as pool:
            senders = [pool.submit(unfinished, number) for number in range(32)]
            assert_answers(webhook)
            while not all(each.done() for each in senders):
                assert_answers(webhook)
            sent = sum(each.result() for each in senders)

        assert sent > 3 * LARGEST_BACKLOG
        assert peak_bytes(worker) - peak < 2 * LARGEST_BACKLOG
        most = LARGEST_BACKLOG // (length - 1)
        eventually(lambda: sockets(worker) - open_before <= most, "the others to be ended")


def assert_answers(webhook: Webhook) -> None:
    """It answers the review of a good pod."""
    assert webhook.review("/mutate", admitted(half()))["allowed"] is True


def peak_bytes(pid: int) -> int:
    """The most memory that a process has had."""
    (line,) = (each for each in Path(f"/proc/{pid}/status").read_text().splitlines() if "VmHWM" in each)
    return int(line.split()[1]) * 1024


PATIENCE_S = 5  # of the API server, by the manifests


@pytest.mark.parametrize("path", ["/mutate", "/simulate"])
def test_ordinary_pods_are_reviewed_while_anybody_posts_large_reviews(webhook: Webhook, path: str) -> None:
    bodies, ended = [*floods(path).values()], Event()
    taken = Counter[int]()

    def flood(number: int) -> None:
        while not ended.is_set():
            try:
                taken[webhook.ask("POST", path, bodies[number % len(bodies)])[0]] += 1
            except OSError:
                taken[0] += 1  # too much of it was unanswered

    def allowed(_: int) -> bool:
        connection = http.client.HTTPSConnection(
            "127.0.0.1", webhook.port, timeout=PATIENCE_S, context=webhook.tls.client()
        )
        with closing(connection):
            connection.request("POST", "/mutate", GOOD)
            return bool(orjson.loads(connection.getresponse().read())["response"]["allowed"])

    with ThreadPoolExecutor(8) as pool:
        clients = [pool.submit(flood, number) for number in range(8)]
        try:
            eventually(lambda: taken.total() >= 8, "the flood")
            answers = [allowed(number) for number in range(12)]
        finally:
            ended.set()
    assert [client.result() for client in clients] == [None] * 8
    assert all(answers)


def test_a_finished_request_leaves_its_room_to_the_next(webhook: Webhook) -> None:
    """Many times what may be unanswered at once, one whole request after the other."""
    body = GOOD + b" " * (8 * 1024 * 1024 - len(GOOD))
    connection = webhook.connection()
    for _ in range(3 * LARGEST_BACKLOG // len(body)):
        connection.request("POST", "/mutate", body)
        answer = connection.getresponse()
        assert (answer.status, bool(answer.read())) == (200, True)
    connection.close()


@pytest.mark.parametrize("records", [RECEIVES_A_TURN, RECEIVES_A_TURN + 1, 3 * RECEIVES_A_TURN])
def test_a_request_in_as_many_pieces_as_one_turn_takes_is_answered(webhook: Webhook, records: int) -> None:
    """All its TLS records arrive at once, so nothing that comes later wakes the worker again."""
    request = b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(GOOD), GOOD)
    pieces = [*(bytes([each]) for each in request[: records - 1]), request[records - 1 :]]
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = webhook.tls.client().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with socket.create_connection(("127.0.0.1", webhook.port), timeout=LONGEST_S) as raw:
        patiently(client.do_handshake, raw, incoming, outgoing)
        for piece in pieces:
            client.write(piece)
        raw.sendall(outgoing.read())

        assert patiently(lambda: client.read(65_536), raw, incoming, outgoing).startswith(b"HTTP/1.1 200 OK")


def patiently(
    step: Callable[[], Any], raw: socket.socket, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO
) -> Any:
    """Does a step of TLS, carrying bytes to and fro until it is through."""
    while True:
        try:
            done = step()
        except ssl.SSLWantReadError:
            raw.sendall(outgoing.read())
            incoming.write(raw.recv(65_536))
        else:
            raw.sendall(outgoing.read())
            return done


BODIES: dict[str, tuple[str, str, bytes, int]] = {
    "not JSON": ("POST", "/mutate", b"{", 400),
    "not a review": ("POST", "/validate", b"{}", 400),
    "an empty body": ("POST", "/mutate", b"", 400),
    "no such route": ("POST", "/nowhere", b"{}", 404),
    "the wrong method": ("GET", "/mutate", b"", 405),
    "too large": ("POST", "/mutate", b" " * (8 * 1024 * 1024 + 1), 413),
    "as large as may be": ("POST", "/mutate", GOOD + b" " * (8 * 1024 * 1024 - len(GOOD)), 200),
}


@pytest.mark.parametrize("case", BODIES)
def test_what_is_wrong_with_a_request_is_reported_in_its_status(webhook: Webhook, case: str) -> None:
    method, path, body, status = BODIES[case]

    assert webhook.ask(method, path, body)[0] == status


def test_plain_http_is_not_answered(webhook: Webhook) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", webhook.port, timeout=LONGEST_S)
    connection.request("GET", "/livez")

    with pytest.raises((http.client.HTTPException, ConnectionError)):
        connection.getresponse()
    connection.close()


def test_http_2_is_not_offered(webhook: Webhook) -> None:
    context = webhook.tls.client()
    context.set_alpn_protocols(["h2", "http/1.1"])
    raw = socket.create_connection(("127.0.0.1", webhook.port), timeout=LONGEST_S)
    with context.wrap_socket(raw, server_hostname="localhost") as client:
        assert client.selected_alpn_protocol() == "http/1.1"


def test_the_metrics_are_those_of_all_workers(webhook: Webhook) -> None:
    def refused() -> float:
        return figure(webhook, 'bursar_webhook_reviews_total{verdict="refused",webhook="mutate"}')

    before = refused()
    for _ in range(10):
        webhook.review("/mutate", admitted(container(gpu_percent="150")))

    assert {refused() for _ in range(10)} == {before + 10}
    text = webhook.ask("GET", "/metrics")[1].decode()
    for name in (
        'bursar_webhook_violations_total{mode="enforce",rule="share-range"}',
        'bursar_webhook_standings_polls_total{outcome="heard"}',
        "bursar_webhook_standings_last_success_timestamp_seconds",
        "bursar_webhook_review_seconds_bucket",
        "bursar_webhook_malformed_total",
    ):
        assert name in text


def test_a_decision_is_one_line_without_the_pods_contents(webhook: Webhook) -> None:
    raw = admitted(half(env=[{"name": "SECRET", "value": "hunter2"}]))
    webhook.review("/mutate", raw, name="p\nevent=forged", namespace="team-a")

    (line,) = (each for each in webhook.log().splitlines() if "nevent=forged" in each)
    assert line.partition(" role=")[2].startswith(
        "webhook event=review webhook=mutate verdict=governed namespace=team-a "
        'pod="p\\nevent=forged" operation=CREATE '
        "standing="
    )
    assert "hunter2" not in webhook.log()
    assert "the-token" not in webhook.log()


# what ends and begins


def test_a_renewed_certificate_is_served_without_a_restart(
    tmp_path: Path, timekeeper: SimulatedTimekeeper
) -> None:
    own = Tls(tmp_path / "tls")
    with Webhook(tmp_path, own, timekeeper.url, workers=1) as webhook:
        before, kept = serial(webhook), webhook.connection()
        kept.request("GET", "/livez")
        kept.getresponse().read()

        own.renew()

        eventually(lambda: serial(webhook) != before, "the new certificate to be served")
        kept.request("GET", "/livez")
        assert kept.getresponse().read() == b"ok\n"
        kept.close()


def test_the_metrics_show_when_the_certificate_that_is_served_runs_out(
    tmp_path: Path, timekeeper: SimulatedTimekeeper
) -> None:
    own = Tls(tmp_path / "tls")
    with Webhook(tmp_path, own, timekeeper.url) as webhook:

        def told() -> float:
            return figure(webhook, "bursar_webhook_certificate_expiration_timestamp_seconds")

        file = tmp_path / "tls" / "tls.crt"
        first = ends(file.read_text())[0].timestamp()
        eventually(lambda: told() == first, "the certificate in both workers")

        own.renew(timedelta(days=3))

        later = ends(file.read_text())[0].timestamp()
        assert later != first
        eventually(lambda: told() == later, "the renewed one in both workers")


def test_certificate_files_that_do_not_fit_together_leave_the_former_one(
    tmp_path: Path, timekeeper: SimulatedTimekeeper
) -> None:
    own = Tls(tmp_path / "tls")
    with Webhook(tmp_path, own, timekeeper.url, workers=1) as webhook:
        before = serial(webhook)
        (own.folder / "tls.crt").write_text("-----BEGIN CERTIFICATE-----\nhalf\n")

        eventually(
            lambda: bool(serial(webhook)) and "event=not-loaded" in webhook.log(), "the file to be looked at"
        )

        assert serial(webhook) == before


def test_without_certificate_files_it_waits_for_them(tmp_path: Path, timekeeper: SimulatedTimekeeper) -> None:
    own = Tls(tmp_path / "tls")
    aside = tmp_path / "aside"
    own.folder.rename(aside)
    webhook = Webhook(tmp_path, own, timekeeper.url, workers=1)
    try:
        eventually(lambda: "event=serving" in webhook.log(), "the webhook to listen")
        with pytest.raises(OSError):
            webhook.ask("GET", "/readyz")
        aside.rename(own.folder)
        with webhook:
            assert webhook.review("/mutate", admitted(half()))["allowed"] is True
    finally:
        webhook.process.kill()
        webhook.process.wait()


def test_while_the_timekeeper_is_away_standings_age_as_they_should(tmp_path: Path, tls: Tls) -> None:
    document = standings(team_a=entry("IN_BUDGET"), team_b=entry("OVER_BUDGET"))
    with (
        SimulatedTimekeeper(tls, document) as away,
        Webhook(tmp_path, tls, away.url, workers=1) as webhook,
    ):

        def standings_now() -> list[str]:
            return [
                standing_of(webhook.review("/mutate", admitted(half()), namespace=namespace))
                for namespace in ("team-a", "team-b", "elsewhere")
            ]

        eventually(lambda: standings_now() == ["IN_BUDGET", "OVER_BUDGET", "UNLIMITED"], "the table")
        away.document = None
        eventually(lambda: standings_now() == ["UNKNOWN", "OVER_BUDGET", "UNKNOWN"], "the table to age")

        assert webhook.ask("GET", "/readyz")[0] == 200
        response = webhook.review("/mutate", admitted(half()))
        assert "Budget service unreachable; budget status" in response["warnings"][0]
        assert webhook.log().count("event=standings-failed") == 1


def test_a_timekeeper_of_another_ca_is_not_believed(tmp_path: Path, tls: Tls) -> None:
    with (
        SimulatedTimekeeper(Tls(tmp_path / "other"), standings(team_a=entry("UNLIMITED"))) as forger,
        Webhook(tmp_path, tls, forger.url, workers=1) as webhook,
    ):
        eventually(lambda: "its certificate is not accepted" in webhook.log(), "the refusal to be told")

        assert standing_of(webhook.review("/mutate", admitted(half()))) == "UNKNOWN"
        assert forger.asked == []


def test_sigterm_ends_it_in_order_beside_an_idle_connection(
    tmp_path: Path, tls: Tls, timekeeper: SimulatedTimekeeper
) -> None:
    with Webhook(tmp_path, tls, timekeeper.url) as webhook:
        workers = webhook.workers()
        idle = webhook.connection()
        idle.request("GET", "/livez")
        idle.getresponse().read()

        webhook.process.terminate()

        assert webhook.process.wait(timeout=LONGEST_S) == 0
        idle.close()
    eventually(lambda: not any(runs(pid) for pid in workers), "the workers end with their master")


def test_a_request_on_its_way_at_sigterm_is_answered(
    tmp_path: Path, tls: Tls, timekeeper: SimulatedTimekeeper
) -> None:
    with Webhook(tmp_path, tls, timekeeper.url, workers=1) as webhook:
        with tls_socket(webhook) as client:
            client.sendall(b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(GOOD))
            client.sendall(GOOD[:100])
            # its worker has taken the beginning once it answers someone who came later
            assert webhook.ask("GET", "/livez")[0] == 200
            webhook.process.terminate()
            eventually(lambda: not listens(webhook.port), "the listener to go")
            client.sendall(GOOD[100:])
            received = client.recv(65_536)

        assert received.startswith(b"HTTP/1.1 200 OK")
        assert b"Connection: close" in received
        assert webhook.process.wait(timeout=LONGEST_S) == 0


def test_a_worker_that_dies_is_replaced(tmp_path: Path, tls: Tls, timekeeper: SimulatedTimekeeper) -> None:
    with Webhook(tmp_path, tls, timekeeper.url, workers=1) as webhook:
        (worker,) = webhook.workers()
        subprocess.run(["kill", "-9", str(worker)], check=True)

        eventually(lambda: webhook.workers() not in ([], [worker]), "another worker")
        eventually(lambda: webhook._ready(), "it to be ready")
        assert webhook.review("/mutate", admitted(half()))["allowed"] is True


def test_a_taken_port_is_one_clear_sentence(tls: Tls) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"

        done = command("--listen", address)

    assert (done.returncode, done.stderr) == (
        2,
        f"bursar-webhook: cannot listen on {address}: Address already in use\n",
    )


def test_neither_kubernetes_nor_sqlalchemy_nor_cryptography_is_loaded_by_what_serves() -> None:
    code = (
        "import sys, webhook.server.gunicorn_app, webhook.server.wiring;"
        "heavy = ('kubernetes', 'sqlalchemy', 'cryptography', 'yaml', 'jsonpatch');"
        "print([each for each in heavy if each in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env=environment()
    )

    assert (done.stdout, done.stderr) == ("[]\n", "")


def command(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """``python -m webhook`` to its end."""
    return subprocess.run(
        [sys.executable, "-m", "webhook", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment(),
        timeout=LONGEST_S,
    )


def figure(webhook: Webhook, name: str) -> float:
    """The sum of what the metrics tell under this name."""
    text = webhook.ask("GET", "/metrics")[1].decode()
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))


def serial(webhook: Webhook) -> bytes:
    """The certificate that is served, as DER."""
    with tls_socket(webhook) as client:
        return client.getpeercert(binary_form=True) or b""


def tls_socket(webhook: Webhook) -> ssl.SSLSocket:
    """A connection whose handshake is through."""
    raw = socket.create_connection(("127.0.0.1", webhook.port), timeout=LONGEST_S)
    return webhook.tls.client().wrap_socket(raw, server_hostname="localhost")


def listens(port: int) -> bool:
    """True while new connections are taken there."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=LONGEST_S).close()
    except OSError:
        return False
    return True


def test_the_port_helper_gives_a_free_one() -> None:
    assert not listens(free_port())
