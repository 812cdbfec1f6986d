"""Notifications of a real settler to a real HTTP receiver that is away, also across kills of the settler."""

import hashlib
import hmac
import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

import pytest

from deploy.local.limits import LONGEST_S
from deploy.local.ports import free_port
from tests.support.http_server import JsonHandler, Served
from tests.support.kubeconfig import kubeconfig
from tests.timekeeper.fake_api_server import FakeApiServer, serving
from tests.timekeeper.processes import Process, children, prepared
from tests.timekeeper.worlds import ADMIN, Json, budgets, gpu_pod, lease, node, user_status
from timekeeper.edge.clock import now_ms
from timekeeper.store.decisions import notified
from timekeeper.store.engine.engine import open_store

KEY = b"the key of the signatures"
OVER, BACK = "OverBudget", "BackInBudget"


@dataclass
class Receiver:
    """A server on a port of its own that may be away. While ``is_silent`` it reads a post and does not
    answer."""

    port: int = field(default_factory=free_port)
    got: list[tuple[int, str]] = field(default_factory=list)  # the number and reason of what it read
    is_silent: Event = field(default_factory=Event)
    end: Event = field(default_factory=Event)
    forged: int = 0

    def serve(self) -> Served:
        """It listens until the end of the block."""
        receiver = self

        class Handler(JsonHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                expected = "sha256=" + hmac.new(KEY, body, hashlib.sha256).hexdigest()
                receiver.forged += self.headers["Bursar-Signature"] != expected
                sent = json.loads(body)["notifications"]
                is_silent = receiver.is_silent.is_set()
                receiver.got += [(each["id"], each["reason"]) for each in sent]
                if is_silent:
                    receiver.end.wait(LONGEST_S)  # the caller is killed or gives up before
                else:
                    self.answer(200, {})

        return Served(Handler, port=self.port)

    @property
    def reasons(self) -> list[str]:
        """Of what it read, in order."""
        return [reason for _, reason in self.got]


@dataclass
class Scene:
    """A timekeeper whose one namespace goes over budget and back."""

    api: FakeApiServer
    timekeeper: Process
    receiver: Receiver

    def hours(self, number: int) -> None:
        """The budget of team-a."""
        entry = (
            f"gpuHours: {number}\nperiod: once\nnotify: http://127.0.0.1:{self.receiver.port}/hook?secret=1"
        )
        self.api.put("configmaps", budgets(team_a=entry, _settings="lookahead: 0s"))

    def wait(self, what: str, holds: Callable[[], bool]) -> None:
        """The cluster lives on meanwhile."""

        def is_so() -> bool:
            self.api.put("leases", lease(now_ms()))
            self.api.bookmark()
            return holds()

        self.timekeeper.wait(what, is_so, 60)

    def has_a_place(self) -> bool:
        """Whether the address has its place in the order of the decisions: it is notified from there on."""
        store = open_store(self.timekeeper.url)
        try:
            with store.reading() as connection:
                return bool(notified(connection))
        finally:
            store.close()

    def standing(self) -> str:
        """As it is served."""
        body: Json = self.timekeeper.call("GET", "/v1/budgets/team-a", ADMIN)[1] or {}
        return str(body.get("standing", "")) if isinstance(body, dict) else ""

    def posts(self, result: str) -> int:
        """The settler's own count."""
        text = str(self.timekeeper.call("GET", "/metrics")[1])
        lines = [line for line in text.splitlines() if f'notifications_total{{result="{result}"}}' in line]
        return int(float(lines[0].split()[1])) if lines else 0

    def settler(self) -> int:
        """Its process ID; 0 while there is none."""
        assert self.timekeeper.running is not None
        return next(iter(children(self.timekeeper.running.pid).get("settle", [])), 0)

    def kill_the_settler(self) -> None:
        """SIGKILL, and another settler takes over."""
        killed, started = self.settler(), self.timekeeper.log().count("event=settler-started")
        os.kill(killed, signal.SIGKILL)
        self.wait("another settler", lambda: self.settler() not in (0, killed))
        self.wait("its term", lambda: self.timekeeper.log().count("event=settler-started") > started)


@pytest.fixture
def scene(database_url: str, tmp_path: Path) -> Iterator[Scene]:
    api, receiver = FakeApiServer(), Receiver()
    api.tokens[ADMIN] = user_status("admin")
    api.allowed.add(("admin", "get", "budgets", "team-a"))
    began = now_ms() - 60_000
    api.put("nodes", node("n1"))
    api.put("leases", lease(now_ms()))
    api.put("pods", gpu_pod("p", bound_ms=began, started_ms=began))
    (tmp_path / "key").write_bytes(KEY + b"\n")
    flags = (f"--notification-key={tmp_path / 'key'}", "--lease-duration=15s")
    with serving(api) as url, prepared(tmp_path, kubeconfig(tmp_path, url), *flags) as timekeeper:
        timekeeper.url = database_url
        made = Scene(api, timekeeper, receiver)
        made.hours(100)
        timekeeper.start_ready()
        yield made
        receiver.end.set()


@pytest.mark.parametrize(
    "database_url", ["sqlite", pytest.param("postgresql", marks=pytest.mark.soak)], indirect=True
)
def test_each_notification_arrives_though_the_receiver_is_away_and_the_settler_is_killed(
    scene: Scene,
) -> None:
    receiver, timekeeper = scene.receiver, scene.timekeeper
    scene.wait("the budget", lambda: scene.standing() == "IN_BUDGET")
    scene.wait("the place of the address", scene.has_a_place)
    with receiver.serve():
        scene.hours(0)
        scene.wait("the first", lambda: receiver.reasons == [OVER])
        scene.wait("its answer", lambda: scene.posts("sent") == 1)

    # the receiver is away, and the settler is killed: the next one goes on
    scene.hours(100)
    scene.wait("the second failure", lambda: scene.posts("failed") >= 2)
    assert scene.standing() == "IN_BUDGET"  # nothing waits for the receiver
    scene.kill_the_settler()
    assert receiver.reasons == [OVER]
    receiver.is_silent.set()
    with receiver.serve():
        # killed after the receiver has read the post, and before its answer: it is sent again
        scene.wait("the second", lambda: receiver.reasons == [OVER, BACK])
        scene.kill_the_settler()
        receiver.is_silent.clear()
        scene.wait("it again", lambda: receiver.reasons[:3] == [OVER, BACK, BACK])
        scene.wait("its answer", lambda: scene.posts("sent") == 2)

        # killed as soon as the standing has changed, whether or not the decision is on record yet
        scene.hours(0)
        scene.wait("the end of the budget", lambda: scene.standing() == "OVER_BUDGET")
        scene.kill_the_settler()
        scene.wait("the last", lambda: receiver.reasons[-1] == OVER)

    assert receiver.got == sorted(receiver.got)
    assert [reason for _, reason in sorted({*receiver.got})] == [OVER, BACK, OVER]
    assert receiver.reasons.count(BACK) >= 2
    assert receiver.forged == 0
    assert "secret=1" not in timekeeper.log()
