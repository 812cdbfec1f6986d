"""A real ``python -m timekeeper``: it starts, serves, heals, is killed at the worst moments, and ends in
order."""

import contextlib
import http.client
import os
import random
import signal
import sqlite3
import ssl
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from deploy.local.identity import new_authority
from deploy.local.limits import LONGEST_S
from deploy.local.ports import is_free
from tests.support.kubeconfig import kubeconfig
from tests.support.profile import examples
from tests.timekeeper.books import Run, write
from tests.timekeeper.fake_api_server import FakeApiServer, serving
from tests.timekeeper.processes import Process, children, prepared, send
from tests.timekeeper.worlds import (
    ADMIN,
    DAY,
    HOUR,
    SECOND,
    Json,
    budgets,
    gpu_pod,
    lease,
    node,
    pod_status,
    token,
    user_status,
)
from tests.webhook.servers import runs
from timekeeper.edge.clock import now_ms
from timekeeper.store.engine.engine import open_store

KILLS = examples(2, soak=14)  # test_crash cuts each statement off


def api_server() -> FakeApiServer:
    made = FakeApiServer()
    made.tokens[ADMIN] = user_status("admin")
    made.allowed |= {("admin", "get", right, "") for right in ("standings", "budgets", "usage")}
    made.put("nodes", node("n1", cards=64))
    made.put("leases", lease(now_ms()))
    made.put("configmaps", budgets(team_a="gpuHours: 100\nperiod: year\nonExhausted: deprioritize"))
    return made


@pytest.fixture(scope="module")
def shared_api() -> FakeApiServer:
    return api_server()


@pytest.fixture(scope="module")
def shared(shared_api: FakeApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """Ready, for tests after which it still is."""
    folder = tmp_path_factory.mktemp("shared")
    with serving(shared_api) as url, prepared(folder, kubeconfig(folder, url), traced=True) as process:
        process.start_ready()
        yield process
        process.end()


@pytest.fixture
def api() -> FakeApiServer:
    return api_server()


@pytest.fixture
def timekeeper(api: FakeApiServer, tmp_path: Path) -> Iterator[Process]:
    with serving(api) as url, prepared(tmp_path, kubeconfig(tmp_path, url), traced=True) as process:
        yield process


def test_it_serves_over_tls_1_2_or_newer_with_the_newest_certificate(shared: Process) -> None:
    with contextlib.closing(shared.connection()) as connection:
        connection.connect()
        assert isinstance(connection.sock, ssl.SSLSocket)
        assert connection.sock.version() in ("TLSv1.2", "TLSv1.3")
    assert shared.call("GET", "/v1/standings", ADMIN)[0] == 200

    other = new_authority("another")
    certificate, key = other.leaf(["127.0.0.1"])
    (shared.folder / "tls.key").write_bytes(key)
    assert shared.call("GET", "/livez")[0] == 200  # half replaced: the last good pair serves on
    (shared.folder / "tls.crt").write_bytes(certificate)
    assert shared.call("GET", "/livez")[0] == 0
    (shared.folder / "ca.crt").write_bytes(other.pem)

    assert shared.call("GET", "/livez")[0] == 200


def test_a_settler_that_dies_is_started_again_and_readyz_says_so_meanwhile(
    shared: Process, shared_api: FakeApiServer
) -> None:
    assert shared.running is not None
    (settler,) = children(shared.running.pid)["settle"]

    os.kill(settler, signal.SIGKILL)
    shared.wait(
        "another settler",
        lambda: children(shared.running.pid).get("settle", [settler]) != [settler],  # type: ignore[union-attr]
    )
    shared_api.put("configmaps", budgets(team_b="gpuHours: 0\nperiod: year\nonExhausted: deprioritize"))
    shared.wait(
        "it to decide",
        lambda: "team-b" in shared.call("GET", "/v1/standings", ADMIN)[1].get("namespaces", {}),
    )

    assert "event=settler-ended code=-9 again_in_s=0.1" in shared.log()


def test_without_its_supervisor_nothing_runs_on_and_the_port_is_free_at_once(timekeeper: Process) -> None:
    """The next one must be able to listen: no worker stays for the clients that it has."""
    timekeeper.start_ready()
    assert timekeeper.running is not None
    pids = [pid for each in children(timekeeper.running.pid).values() for pid in each]
    assert len(pids) == 2
    clients = [timekeeper.connection() for _ in range(3)]
    for client in clients:
        assert send(client, "GET", "/livez")[0] == 200

    timekeeper.running.kill()
    timekeeper.running.wait()
    timekeeper.running = None

    def is_free_of_its_clients() -> bool:
        for client in clients:  # a worker that stayed for them would stay for as long as they call
            with contextlib.suppress(OSError, http.client.HTTPException):
                send(client, "GET", "/livez")
        return is_free(timekeeper.port)

    timekeeper.wait("the port", is_free_of_its_clients)
    timekeeper.wait("the children's end", lambda: not any(runs(pid) for pid in pids))
    for client in clients:
        client.close()
    assert [*timekeeper.folder.glob("bursar-timekeeper-*")] == []


def test_a_machine_whose_clock_is_an_hour_back_charges_by_the_api_servers(
    timekeeper: Process, api: FakeApiServer
) -> None:
    """A pod that is deleted by force is charged to the end of its grace period."""
    api.ahead_s = 3600

    def server_ms() -> int:
        return now_ms() + HOUR

    began = server_ms() - 5 * SECOND
    pod = gpu_pod(bound_ms=began, started_ms=began, grace_s=2)
    api.put("leases", lease(server_ms()))
    api.put("pods", pod)
    api.allowed.add(("admin", "get", "sessions", ""))
    timekeeper.start()
    timekeeper.wait_ready()

    timekeeper.wait("the session", lambda: "event=session-opened" in timekeeper.log())
    api.put("leases", lease(server_ms()))
    api.remove_as("pods", pod)

    def is_charged_through_its_grace() -> bool:
        """By the machine's clock it ended before it began."""
        (row,) = timekeeper.call("GET", "/v1/sessions", ADMIN)[1]["sessions"]
        ended = (row["vanished"] or 0) + 2 * SECOND
        return bool(row["amount"] == 1_000 * (ended - began))

    timekeeper.wait("its end", is_charged_through_its_grace)
    status, said = timekeeper.call("GET", "/readyz")
    assert status == 200
    assert "s behind the API server's, whose time is used; set it right" in said
    assert "bursar_clock_offset_seconds -3" in timekeeper.call("GET", "/metrics")[1]
    for name in ("bytes", "free_bytes"):
        assert f'bursar_database_{name}{{kind="sqlite"}} ' in timekeeper.call("GET", "/metrics")[1]


def test_six_unread_reports_of_one_tenant_refuse_no_report_of_another(
    shared: Process, shared_api: FakeApiServer
) -> None:
    """Its connections take the answers' heads and read no further, so its reports last."""
    reader = {name: token(f"system:serviceaccount:{name}:reader") for name in ("mal", "victim")}
    for name, text in reader.items():
        shared_api.tokens[text] = user_status(f"system:serviceaccount:{name}:reader")
        shared_api.allowed.add((f"system:serviceaccount:{name}:reader", "get", "usage", name))
    begin = now_ms() // HOUR * HOUR - 395 * DAY
    hours = tuple((at, at + HOUR, 1) for at in range(begin, begin + 395 * DAY, HOUR))
    with (
        contextlib.closing(open_store(f"sqlite:///{shared.database}")) as store,
        store.writing() as ledger,
    ):
        write(ledger, (Run("m", "mal", posted=hours), Run("v", "victim", posted=hours[-2:])))
    ask = f"/v1/usage?from={begin}&by=hour&namespace="
    heads, over = Counter[int](), Event()

    def load() -> None:
        connection = shared.connection()
        connection.timeout = 60
        connection.request(
            "GET", f"{ask}mal&format=focus", headers={"Authorization": f"Bearer {reader['mal']}"}
        )
        heads[connection.getresponse().status] += 1
        over.wait(LONGEST_S)
        connection.close()

    threads = [Thread(target=load) for _ in range(6)]
    for each in threads:
        each.start()
    shared.wait("the load", lambda: bool(heads[200] and heads[503]))

    answers = [shared.call("GET", f"{ask}victim{page}", reader["victim"]) for page in ("", "&limit=9") * 3]

    assert [(status, len(answer.get("rows", ()))) for status, answer in answers] == [(200, 2)] * 6
    assert heads == {200: 1, 503: 1}  # one is read, and all but one wait for it
    over.set()
    for each in threads:
        each.join(LONGEST_S)
    assert heads == {200: 5, 503: 1}


def test_without_workers_it_ends_so_that_it_is_started_anew(timekeeper: Process) -> None:
    timekeeper.start_ready()
    assert timekeeper.running is not None
    (workers,) = children(timekeeper.running.pid)["workers"]

    os.kill(workers, signal.SIGKILL)

    assert timekeeper.running.wait(LONGEST_S) == 1
    assert "event=workers-ended code=-9" in timekeeper.log()


def test_a_port_that_is_taken_is_a_sentence_and_exit_code_2(shared: Process) -> None:
    second = Process(shared.folder, shared.kubeconfig, shared.launcher, port=shared.port)
    second.start()
    assert second.running is not None

    assert second.running.wait(LONGEST_S) == 2
    assert f"cannot listen on 127.0.0.1:{shared.port}: Address already in use" in shared.log()


def test_a_database_that_cannot_be_opened_is_a_sentence_and_exit_code_2(timekeeper: Process) -> None:
    timekeeper.database.mkdir()
    timekeeper.start()
    assert timekeeper.running is not None

    assert timekeeper.running.wait(LONGEST_S) == 2
    assert "unable to open database file" in timekeeper.log()
    assert "Traceback" not in timekeeper.log()


def test_without_an_api_server_it_lives_and_begins_nothing(tmp_path: Path) -> None:
    with prepared(tmp_path, kubeconfig(tmp_path, "http://127.0.0.1:1"), traced=True) as process:
        process.start()
        process.wait("/livez", lambda: process.call("GET", "/livez")[0] == 200)
        process.wait("the settler's word", lambda: "watch-failed source=namespaces" in process.log())

        assert process.call("GET", "/readyz") == (503, "settler: it has written nothing yet\n")
        assert process.call("GET", "/v1/standings", ADMIN)[0] == 503
        assert process.end() == 0


class Load:
    """Pods of team-a that start, beat and end while the timekeeper is killed; ``true`` is what they really
    ran, ``beats`` counts heartbeats that were acknowledged."""

    def __init__(self, api: FakeApiServer, timekeeper: Process) -> None:
        self._api, self._timekeeper = api, timekeeper
        self._stop = Event()
        self.true: dict[str, tuple[int, int]] = {}
        self.beats = 0
        self._thread = Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        running: dict[str, tuple[Json, int]] = {}
        while not self._stop.is_set():
            now = now_ms()
            name = f"p{number}"
            pod = gpu_pod(name, card=number % 64, percent=10, bound_ms=now, started_ms=now)
            self._api.tokens[token(name)] = pod_status(pod)
            self._api.put("pods", pod)
            self._api.put("leases", lease(now))
            running[name] = (pod, now)
            number += 1
            self._beat_all(running, number)
            if len(running) > 8:
                self._end(next(iter(running)), running)
            self._stop.wait(0.02)
        for name in list(running):
            self._end(name, running)

    def _beat_all(self, running: dict[str, tuple[Json, int]], sequence: int) -> None:
        """Every post twice: a repeat is what a sidecar sends whose answer was lost."""
        for name in list(running)[-3:]:
            beats = [{"age_ms": 0, "devices": []}]
            body = {"version": 1, "boot": "b", "sequence": sequence, "beats": beats}
            for _ in range(2):
                if self._timekeeper.call("POST", "/v1/heartbeats", token(name), body)[0] == 200:
                    self.beats += 1

    def _end(self, name: str, running: dict[str, tuple[Json, int]]) -> None:
        _, start = running.pop(name)
        end = max(start + 1, now_ms())
        number = int(name[1:])
        done = gpu_pod(name, card=number % 64, percent=10, bound_ms=start, started_ms=start, ended_ms=end)
        self.true[name] = (start, end)
        self._api.put("pods", done)


def holds_the_lock(database: Path) -> bool:
    """Whether somebody is in a transaction that writes, at this very moment."""
    with contextlib.closing(sqlite3.connect(database, timeout=0, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
        except sqlite3.OperationalError as error:
            return "locked" in str(error)
    return False


def kill_in_a_transaction(timekeeper: Process) -> bool:
    """Look until somebody writes, and kill at once; True where that was so at the moment of the kill."""
    begun = time.monotonic()
    while time.monotonic() < begun + LONGEST_S:
        if holds_the_lock(timekeeper.database):
            timekeeper.kill()
            return True
    timekeeper.kill()
    return False


def test_killed_many_times_under_load_nothing_is_lost_or_charged_twice(
    timekeeper: Process, api: FakeApiServer
) -> None:
    timekeeper.traced = False  # what is killed leaves coverage no data
    chance = random.Random(7)
    timekeeper.start_ready()
    inside = 0
    with Load(api, timekeeper) as load:
        for _ in range(KILLS):
            seen = load.beats
            timekeeper.wait("a heartbeat", lambda seen=seen: load.beats > seen)  # type: ignore[misc]
            time.sleep(chance.random() / 5)
            inside += kill_in_a_transaction(timekeeper)
            timekeeper.start()
        timekeeper.wait_ready()
    api.put("leases", lease(now_ms() + HOUR))

    span = f"from={now_ms() - HOUR}&to={now_ms() + HOUR}"
    rows: list[Json] = []

    def all_posted() -> bool:
        status, report = timekeeper.call("GET", f"/v1/usage?group=pod&{span}", ADMIN)
        rows[:] = report["rows"] if status == 200 else []
        return len(rows) == len(load.true) and not any(row["pending"] for row in rows)

    timekeeper.wait("every pod to be posted", all_posted)
    charged = {row["pod"]: row["amount"] for row in rows}
    assert charged == {name: 100 * (end - start) for name, (start, end) in load.true.items()}
    print(f"{inside} of {KILLS} kills fell inside a transaction")
    assert inside >= max(1, KILLS // 3), f"only {inside} of {KILLS} kills fell inside a transaction"
    assert timekeeper.end() == 0
    assert_whole(timekeeper.database)


def assert_whole(database: Path) -> None:
    """SQLite finds nothing wrong, and each posting is what it says."""
    with contextlib.closing(sqlite3.connect(database)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        wrong: list[Any] = connection.execute(
            "SELECT * FROM postings WHERE amount <> rate_milli * (to_ms - from_ms)"
        ).fetchall()
    assert wrong == []


def test_a_start_right_after_a_kill_has_what_was_acknowledged_and_removes_the_folder_that_was_left(
    timekeeper: Process, api: FakeApiServer
) -> None:
    start = now_ms() - 60 * SECOND
    pod = gpu_pod("p", bound_ms=start, started_ms=start)
    api.put("pods", pod)
    api.tokens[token("p")] = pod_status(pod)
    body = {"version": 1, "boot": "b", "sequence": 1, "beats": [{"age_ms": 0, "devices": []}]}
    timekeeper.start()
    timekeeper.wait(
        "the session", lambda: timekeeper.call("POST", "/v1/heartbeats", token("p"), body)[0] == 200
    )
    span = f"/v1/usage?from={start}&to={start + HOUR}"
    _, acknowledged = timekeeper.call("GET", span, ADMIN)
    (left,) = timekeeper.folder.glob("bursar-timekeeper-*")
    timekeeper.kill()

    timekeeper.start_ready()

    (own,) = timekeeper.folder.glob("bursar-timekeeper-*")
    assert own != left
    _, report = timekeeper.call("GET", span, ADMIN)
    assert report["total"] == acknowledged["total"]
    assert report["total"]["amount"] != 0
    assert timekeeper.end() == 0
    assert [*timekeeper.folder.glob("bursar-timekeeper-*")] == []
