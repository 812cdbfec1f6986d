"""Servers that answer wrongly, slowly or not at all: what every client of ours makes of them.

One table for all (`tests.runtime.hostile_servers`).
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from deploy.local.limits import LONGEST_S
from sidecar import settings, spool
from sidecar.heartbeat_client import Delivered, HeartbeatClient
from sidecar.node.kube.api import JSON, NodeApi, NodeLists
from sidecar.run import boot_ms
from tests.runtime.hostile_servers import (
    ANSWERS,
    FAILS,
    GOOD,
    KEPT,
    SLOW,
    HostileServer,
    Kept,
    chunks,
    status,
)
from tests.support.tls import Tls
from timekeeper.cli.client import Client
from timekeeper.cli.output import CommandError
from timekeeper.dashboard.login.id_token import ProviderAwayError
from timekeeper.dashboard.login.provider import Provider
from timekeeper.edge.list_watch import lines
from timekeeper.edge.outbox import Post
from timekeeper.edge.reflector import ExpiredError, UnreachableError
from timekeeper.edge.timekeeper_client import FAILURES, TimekeeperClient
from timekeeper.runtime.api_server import Answered, Api
from timekeeper.runtime.connect import of_service_account
from timekeeper.runtime.http.problem_details import Problem
from timekeeper.runtime.oidc_settings import OidcSettings
from timekeeper.runtime.peers import Peer
from timekeeper.runtime.prometheus import PrometheusClient, PrometheusError
from timekeeper.runtime.prometheus_settings import PrometheusSettings

TOKEN = "secret-token-of-this-test"
LONG_S, SHORT_S = LONGEST_S, 0.5  # how long a client waits that can be told to


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a call: a status or `FAILS`, and what the client says."""

    word: str
    says: str = ""


@dataclass(frozen=True, slots=True)
class Calls:
    """A client of one server, as a function and what closes it."""

    call: Callable[[], Outcome]
    close: Callable[[], None]

    def __call__(self) -> Outcome:
        return self.call()


def _status(text: str) -> str:
    """The status that a sentence names, or `FAILS`."""
    words = text.replace(":", " ").split()
    return next((word for word in words if len(word) == 3 and word.isdigit()), FAILS)


def heartbeat(folder: Path, url: str, ca: str, within_s: float = LONG_S) -> Calls:
    """The sidecar's posts."""
    variables = {
        "BURSAR_TIMEKEEPER_URL": url,
        "BURSAR_TOKEN_FILE": str(folder / "token"),
        "BURSAR_CA": ca,
        "BURSAR_SPOOL": str(folder / "spool"),
    }
    client = HeartbeatClient(settings.read([], variables), boot_ms, None, lambda *_: None, within_s)
    post = Post("run", 3, (spool.SpooledBeat(boot_ms(), ()),))

    def call() -> Outcome:
        done = client.deliver(post)
        if isinstance(done, Delivered):
            return Outcome("200")
        answered = done.reason.startswith("it answered") and "no heartbeat reply" not in done.reason
        return Outcome(_status(done.reason) if answered else FAILS, done.reason)

    return Calls(call, client.close)


def node_api(folder: Path, url: str, _ca: str, within_s: float = LONG_S) -> Calls:
    """The node agent's calls of the API server."""
    client = NodeApi(url, str(folder / "ca.crt"), str(folder / "token"))

    def call() -> Outcome:
        try:
            answer = client.call("GET", "/api", within_s=within_s)
        except UnreachableError as error:
            return Outcome(FAILS, str(error))
        return Outcome(str(answer.status), answer.message)

    return Calls(call, client.close)


def watched(api: Api | NodeLists, within_s: float) -> Outcome:
    """One watch to its end."""
    try:
        for _ in lines(api, "/api", {}, within_s):
            pass
    except ExpiredError:
        return Outcome("410")
    except UnreachableError as error:
        return Outcome(str(error)[:3] if str(error)[:3].isdigit() else FAILS, str(error))
    return Outcome("200")


def node_watch(folder: Path, url: str, _ca: str, within_s: float = LONG_S) -> Calls:
    """The node agent's watches."""
    client = NodeApi(url, str(folder / "ca.crt"), str(folder / "token"))
    return Calls(lambda: watched(NodeLists(client, JSON), within_s), client.close)


def api_watch(folder: Path, url: str, _ca: str, within_s: float = LONG_S) -> Calls:
    """The other roles' watches."""
    host, _, port = url.removeprefix("https://").rpartition(":")
    where = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
    client = of_service_account(environment=where, folder=folder)
    return Calls(lambda: watched(client, within_s), client.close)


def api_of(method: str) -> Callable[..., Calls]:
    """The other roles' calls of the API server."""

    def made(folder: Path, url: str, _ca: str, within_s: float = LONG_S) -> Calls:
        host, _, port = url.removeprefix("https://").rpartition(":")
        where = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
        client = of_service_account(environment=where, folder=folder)

        def call() -> Outcome:
            reply = client.call(method, "/api", {"a": 1} if method == "POST" else None, timeout_s=within_s)
            if isinstance(reply, Answered):
                return Outcome(str(reply.status), reply.message)
            return Outcome(FAILS, reply.message)

        return Calls(call, client.close)

    return made


def timekeeper_get(folder: Path, url: str, ca: str, within_s: float = LONG_S) -> Calls:
    """The polls of webhook and extender."""
    client = TimekeeperClient(url, "/v1/standings", folder / "token", lambda: ca, within_s)

    def call() -> Outcome:
        try:
            client.get("")
        except FAILURES as error:
            return Outcome(_status(str(error)) if "answered" in str(error) else FAILS, str(error))
        return Outcome("200")

    return Calls(call, client.close)


def timekeeper_post(folder: Path, url: str, ca: str, within_s: float = LONG_S) -> Calls:
    """The posts of webhook and extender."""
    client = TimekeeperClient(url, "/v1/decisions", folder / "token", lambda: ca, within_s)

    def call() -> Outcome:
        try:
            client.post(b"{}")
        except FAILURES as error:
            return Outcome(_status(str(error)) if "answered" in str(error) else FAILS, str(error))
        return Outcome("200")

    return Calls(call, client.close)


def prometheus(folder: Path, url: str, _ca: str, within_s: float = LONG_S) -> Calls:
    """The questions to Prometheus."""
    asked = PrometheusSettings(url, ca=folder / "ca.crt", token_file=folder / "token")
    where = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "1"}
    client = PrometheusClient(asked, of_service_account(environment=where, folder=folder))

    def call() -> Outcome:
        try:
            client.ask("/api/v1/query")
        except PrometheusError as error:
            client.close()
            return Outcome(_status(str(error)) if " answers " in str(error) else FAILS, str(error))
        return Outcome("200")

    return Calls(call, client.close)


def peer(folder: Path, url: str, ca: str, within_s: float = LONG_S) -> Calls:
    """The timekeeper's questions to webhook and extender."""
    asked = Peer("webhook", url, lambda: ca, within_s, folder / "token")

    def call() -> Outcome:
        try:
            asked.ask("/v1/simulate", {})
        except Problem as problem:
            said = problem.detail
            answered = problem.status != 503 or " answered " in said
            return Outcome(
                _status(said if " answered " in said else str(problem.status)) if answered else FAILS, said
            )
        return Outcome("200")

    return Calls(call, lambda: None)


def provider(folder: Path, url: str, _ca: str, within_s: float = LONG_S) -> Calls:
    """The questions to who logs people in. ``BODY`` names no issuer."""
    settings = OidcSettings(issuer=url, client_id="x", ca_file=folder / "ca.crt", dashboard_url=url)
    asked = Provider(settings, boot_ms, within_s)

    def call() -> Outcome:
        try:
            asked.authorization_url("s", "n", "c")
        except ProviderAwayError as error:
            said = str(error)
            if "its issuer is None" in said:
                return Outcome("200")
            return Outcome(_status(said.rpartition(" answers ")[2]) if " answers " in said else FAILS, said)
        raise AssertionError("an answer without an issuer was taken")

    return Calls(call, lambda: None)


def command(_folder: Path, url: str, ca: str, within_s: float = LONG_S) -> Calls:
    """The command's calls of the REST API."""
    client = Client(url, TOKEN, ca)
    client.within_s = within_s

    def call() -> Outcome:
        try:
            client.get("/v1/standings")
        except CommandError as error:
            answered = "the server answered" in error.message
            return Outcome(_status(error.message) if answered else FAILS, error.message)
        return Outcome("200")

    return Calls(call, lambda: None)


CLIENTS: Mapping[str, Callable[..., Calls]] = {
    "sidecar": heartbeat,
    "node agent": node_api,
    "API server, GET": api_of("GET"),
    "API server, POST": api_of("POST"),
    "node agent, watch": node_watch,
    "API server, watch": api_watch,
    "timekeeper, GET": timekeeper_get,
    "timekeeper, POST": timekeeper_post,
    "Prometheus": prometheus,
    "peer": peer,
    "login": provider,
    "command": command,
}
# They keep no connection.
ONE_CALL = ("peer", "login", "node agent, watch", "API server, watch")
ONCE = ("API server, POST",)  # what it does twice is done twice
UNSURE = ("closed once the request was read", "closed twice")


def cases(rows: Iterable[str], *without: str) -> list[tuple[str, str]]:
    """Each client with each row."""
    return [(client, row) for client in CLIENTS for row in rows if client not in without]


@pytest.fixture
def folder(tmp_path: Path, tls: Tls) -> Path:
    (tmp_path / "ca.crt").write_bytes(tls.ca.bundle)
    (tmp_path / "token").write_text(TOKEN + "\n")
    return tmp_path


@pytest.mark.parametrize(("client", "row"), cases(ANSWERS))
def test_an_answer_is_a_status_or_a_failure(folder: Path, tls: Tls, client: str, row: str) -> None:
    answer, word = ANSWERS[row]
    with HostileServer(tls.server(), ((answer,), (GOOD,))) as server:
        caller = CLIENTS[client](folder, server.url, tls.ca.bundle.decode())
        outcome = caller()
        requests = len(server.requests)
        again = caller()
        caller.close()

    assert outcome.word == word, outcome
    assert (requests, TOKEN in outcome.says) == (1, False)
    assert again.word == "200", again


@pytest.mark.parametrize(("client", "row"), cases(SLOW, "Prometheus"))
def test_a_slow_answer_is_given_up(folder: Path, tls: Tls, client: str, row: str) -> None:
    with HostileServer(tls.server(), ((SLOW[row],),)) as server:
        caller = CLIENTS[client](folder, server.url, tls.ca.bundle.decode(), SHORT_S)
        outcome = caller()
        caller.close()

    assert outcome.word == FAILS, outcome


@pytest.mark.parametrize("client", ["node agent, watch", "API server, watch"])
def test_a_watch_lasts_for_as_long_as_whole_lines_come(folder: Path, tls: Tls, client: str) -> None:
    lines = (part for _ in range(12) for part in (b"2\r\n{}\r\n", 0.2, b"2\r\n}\n\r\n", 0.2))
    with HostileServer(tls.server(), (((chunks(end=b""), *lines, b"0\r\n\r\n"),),)) as server:
        caller = CLIENTS[client](folder, server.url, tls.ca.bundle.decode(), 4.0)
        outcome = caller()
        caller.close()

    assert outcome.word == "200", outcome


@pytest.mark.parametrize(("client", "row"), cases(KEPT, *ONE_CALL))
def test_a_connection_that_is_kept(folder: Path, tls: Tls, client: str, row: str) -> None:
    kept: Kept = KEPT[row]
    with HostileServer(tls.server(), kept.connections) as server:
        caller = CLIENTS[client](folder, server.url, tls.ca.bundle.decode())
        first = caller()
        time.sleep(0.05)
        second = caller()
        caller.close()

    expected = (FAILS, 2) if client in ONCE and row in UNSURE else (kept.second, kept.requests)
    assert first.word == "200"
    assert (second.word, len(server.requests)) == expected, second


@pytest.mark.parametrize("client", CLIENTS)
def test_after_a_401_the_token_is_read_anew(folder: Path, tls: Tls, client: str) -> None:
    with HostileServer(tls.server(), ((status(401), GOOD), (GOOD,))) as server:
        caller = CLIENTS[client](folder, server.url, tls.ca.bundle.decode())
        first = caller()
        (folder / "token").write_text("second")
        second = caller()
        caller.close()

    assert (first.word, second.word) == ("401", "200")
    tokens = [line for head in server.requests for line in head.split(b"\r\n") if b"earer" in line]
    if client not in ("command", "login"):  # a flag's, another one
        assert [line.rpartition(b" ")[2] for line in tokens] == [TOKEN.encode(), b"second"]


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("wrong", ["another authority", "another name", "no TLS", "hung up", "no listener"])
def test_a_server_that_is_not_the_right_one_gets_no_request(
    folder: Path, tls: Tls, tmp_path_factory: pytest.TempPathFactory, client: str, wrong: str
) -> None:
    context = tls.server()
    if wrong == "another authority":
        context = Tls(tmp_path_factory.mktemp("other")).server()
    elif wrong == "another name":
        context = Tls(tmp_path_factory.mktemp("named"), tls.ca, ("elsewhere.example",), ()).server()
    says_nothing = wrong in ("no TLS", "hung up")  # to a handshake
    with HostileServer(None if says_nothing else context, ((GOOD,),)) as server:
        if wrong == "no listener":
            server.__exit__()
        within_s = SHORT_S if says_nothing else LONG_S
        caller = CLIENTS[client](folder, server.url, tls.ca.bundle.decode(), within_s)
        outcome = caller()
        caller.close()

    assert outcome.word == FAILS, outcome
    assert TOKEN not in outcome.says
    assert not any(TOKEN.encode() in head for head in server.requests)
