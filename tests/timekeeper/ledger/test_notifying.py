"""Notifications: signed posts to the URLs of budgets, repeated until answered, also across restarts."""

import hashlib
import hmac
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.support.clock import SecondsClock
from tests.timekeeper.ledger.test_decisions import post as report
from tests.timekeeper.ledger.test_decisions import posted
from tests.timekeeper.worlds import DAY, HOUR, T0, Json, Town, budgets, gpu_pod, node
from timekeeper.core.decisions import DecisionRun
from timekeeper.runtime.recording.signed_post import FAILURES, post, signature
from timekeeper.settler.notifier import Notifier
from timekeeper.store import decisions

BOTH_DATABASES = "notices at the same time wait for each other's locks"

TEAM, LAB = "https://team.example/hook", "https://lab.example/hook"
KEY = b"secret"


@dataclass
class World:
    """A notifier whose posts are kept; ``status``: what each server answers."""

    town: Town
    key_file: Path
    entries: Json
    seconds: SecondsClock = field(default_factory=SecondsClock)
    posts: list[tuple[str, Json]] = field(default_factory=list)
    status: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.key_file.write_bytes(KEY + b"\n")
        self.restart()

    def restart(self) -> None:
        """The notifier is killed and started again."""
        history = lambda: self.town.settler.ledger.history  # noqa: E731
        where = self.town.store, self.town.settler.epoch
        self.notifier = Notifier(
            *where, history, self.key_file, self.town.clock, self.seconds, lambda *each: self.answer(*each)
        )
        self.notifier.step()

    def change(self, text: str) -> None:
        """The entry of team-a has another text."""
        data = {**self.entries["data"], "team-a": text}
        self.town.change("configmaps", {**self.entries, "data": data})

    def answer(self, url: str, body: bytes, key: bytes) -> int:
        assert key == KEY
        self.posts.append((url, json.loads(body)))
        return self.status.get(url, 200)

    def step(self, seconds: float = 0.0) -> list[tuple[str, list[str]]]:
        """What was posted where, by reason."""
        with self.town.store.writing() as connection:
            runs = [DecisionRun(each, 1, each.at_ms) for each in self.town.recorded]
            decisions.record(connection, "timekeeper", runs)
        self.town.recorded.clear()
        self.posts.clear()
        self.seconds.s += seconds
        self.notifier.step()
        return [(url, [each["reason"] for each in body["notifications"]]) for url, body in self.posts]


@pytest.fixture
def home(town: Town, tmp_path: Path) -> World:
    entries = budgets(
        team_a=f"gpuHours: 1\nperiod: once\ngroup: lab\nnotify: {TEAM}",
        team_b="gpuHours: 1\nperiod: once",
        _group_lab="gpuHours: 100",
    )
    entries["data"]["_group.lab"] = f"gpuHours: 100\nnotify: {LAB}"
    del entries["data"]["_group-lab"]
    town.begin(("nodes", node()), ("configmaps", entries))
    return World(town, tmp_path / "key", entries)


def test_a_namespace_and_its_group_are_notified_once_of_a_budget_that_runs_out_and_is_refilled(
    home: World,
) -> None:
    town = home.town
    town.hear("pods", gpu_pod(started_ms=T0))
    town.advance(2 * HOUR)
    report(town, posted(kind="placed", reason="Bound", name="p"), posted(namespace="team-b", kind="evicted"))

    assert home.step() == [(LAB, ["OverBudget"]), (TEAM, ["OverBudget"])]
    assert home.step() == []
    town.post("/v1/grants", {"subject": "team-a", "gpuHours": 9, "reason": "r"}, **{"Idempotency-Key": "k"})
    town.tick()
    assert home.step() == [(LAB, ["BackInBudget"]), (TEAM, ["BackInBudget"])]
    (_, body), _ = home.posts
    assert body["notifications"][0]["sentence"] == "Namespace team-a is in its GPU budget again."


def test_what_is_not_answered_is_sent_again_also_after_a_restart_and_holds_up_no_other(home: World) -> None:
    evicted = posted(kind="evicted", reason="GPUMemoryEviction", name="p", figures={"otherPod": "secret"})
    home.status[TEAM] = 500
    report(home.town, evicted)
    assert home.step() == [(LAB, ["GPUMemoryEviction"]), (TEAM, ["GPUMemoryEviction"])]
    assert "secret" not in json.dumps(home.posts)
    assert home.step() == []  # its pause

    home.restart()

    assert [url for url, _ in home.posts] == [TEAM]
    home.status.clear()
    assert home.step(seconds=400) == [(TEAM, ["GPUMemoryEviction"])]
    assert home.step(seconds=400) == []


def test_a_url_that_a_budget_names_from_now_on_gets_nothing_older_and_nothing_is_sent_after_a_week(
    home: World,
) -> None:
    report(home.town, posted(kind="evicted", reason="Old", name="p"))
    home.change("gpuHours: 1\nnotify: https://new.example/")
    assert home.step() == []
    home.status["https://new.example/"] = 500
    report(home.town, posted(kind="evicted", reason="New", name="q"))
    assert home.step() == [("https://new.example/", ["New"])]

    home.town.clock.turn(8 * DAY)

    assert home.step(seconds=400) == []


def test_alertmanagers_payload_resolves_what_it_fired(home: World) -> None:
    home.change(f"gpuHours: 1\nperiod: once\nnotify: {TEAM}\nnotifyFormat: alertmanager")
    home.notifier.step()
    for reason in ("OverBudget", "BackInBudget"):
        report(home.town, posted(kind="standing", reason=reason, owner="", generate_name=""))

    home.posts.clear()
    home.notifier.step()

    ((_, body),) = home.posts
    assert (body["version"], body["status"]) == ("4", "firing")
    fired, resolved = body["alerts"]
    assert (fired["status"], resolved["status"]) == ("firing", "resolved")
    assert fired["labels"] == resolved["labels"]
    assert fired["labels"]["alertname"] == "BursarOverBudget"
    assert fired["fingerprint"] == resolved["fingerprint"]


@pytest.mark.parametrize("form", ["bursar", "alertmanager", "slack"])
def test_a_post_names_the_cluster_where_it_has_a_name(home: World, form: str) -> None:
    home.entries["data"]["_settings"] = "clusterName: prod-eu"
    home.change(f"gpuHours: 1\nperiod: once\nnotify: {TEAM}\nnotifyFormat: {form}")
    home.notifier.step()
    report(home.town, posted(kind="standing", reason="OverBudget", owner="", generate_name=""))
    home.posts.clear()

    home.notifier.step()

    ((_, body),) = home.posts
    if form == "bursar":
        assert body["clusterName"] == "prod-eu"
    elif form == "alertmanager":
        (alert,) = body["alerts"]
        assert alert["labels"]["cluster"] == "prod-eu"
        assert alert["fingerprint"].startswith("prod-eu/BursarOverBudget/")
    else:
        assert body["text"].startswith("prod-eu: ")


def test_a_budget_that_will_be_gone_before_its_period_ends_is_reported_once_in_the_period(
    home: World,
) -> None:
    home.change(f"gpuHours: 10\nperiod: month\nnotify: {TEAM}")
    home.step()
    home.town.hear("pods", gpu_pod(started_ms=home.town.clock()))
    home.town.advance(HOUR)

    assert home.step() == [(TEAM, ["ForecastExhaustion"])]
    home.town.advance(HOUR)
    assert home.step() == []


@pytest.fixture
def server() -> Iterator[tuple[str, list[tuple[str, str, bytes]]]]:
    got: list[tuple[str, str, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.append((self.path, self.headers["Bursar-Signature"], body))
            self.send_response(307)
            self.send_header("Location", "/elsewhere")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing is logged."""

    with HTTPServer(("127.0.0.1", 0), Handler) as made:
        thread = Thread(target=made.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{made.server_port}", got
        made.shutdown()
        thread.join()


def test_a_post_is_signed_and_follows_no_redirect(server: tuple[str, list[tuple[str, str, bytes]]]) -> None:
    url, got = server

    assert post(f"{url}/hook?a=b", b"{}", KEY) == 307

    expected = hmac.new(KEY, b"{}", hashlib.sha256).hexdigest()
    assert got == [("/hook?a=b", f"sha256={expected}", b"{}")]
    assert signature(KEY, b"{}") == f"sha256={expected}"
    with pytest.raises(FAILURES):
        post("http://127.0.0.1:1/", b"", KEY)
