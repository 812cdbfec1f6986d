"""Two real timekeepers on one PostgreSQL: both serve, one settles, and whatever is done to that one loses and
doubles nothing."""

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import psycopg
import pytest

from tests.postgresql import fresh_postgresql, server
from tests.support.kubeconfig import kubeconfig
from tests.timekeeper.fake_api_server import FakeApiServer, serving
from tests.timekeeper.processes import Process, children, prepared
from tests.timekeeper.worlds import ADMIN, HOUR, Json, budgets, gpu_pod, lease, node, user_status
from timekeeper.edge.clock import now_ms

pytestmark = pytest.mark.make_all("PostgreSQL")

LEASE_S = 15
WITHIN_S = 60.0


class Pair:
    """Two replicas, and pods that come and go meanwhile: ``true`` is what they really ran."""

    def __init__(self, api: FakeApiServer, replicas: list[Process], url: str) -> None:
        self.api, self.replicas, self.url = api, replicas, url
        self.true: dict[str, tuple[int, int]] = {}
        self._stop = Event()
        self._thread: Thread | None = None
        self._number = 0

    def begin(self) -> None:
        """Both run, one settles, and pods begin to come and go."""
        for replica in self.replicas:
            if replica.running is None:
                replica.start()
        for replica in self.replicas:
            replica.wait_ready()
            settler_of(replica)
        began = now_ms()
        self.replicas[0].wait("a tick", lambda: self.ask("SELECT tick_ms FROM pulse") > [(began,)])
        self.api.cut.clear()
        del self.api.holders[:-1]
        self._stop.clear()
        self._thread = Thread(target=self._live, daemon=True)
        self._thread.start()

    def rest(self) -> None:
        """The pods that are there end, and no more come."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _live(self) -> None:
        running: dict[str, int] = {}
        while not self._stop.is_set() or running:
            now = now_ms()
            self.api.put("leases", lease(now))
            if not self._stop.is_set():
                running[f"p{self._number}"] = now
                self._tell(f"p{self._number}", now, None)
                self._number += 1
            if len(running) > 8 or self._stop.is_set():
                name, start = next(iter(running.items()))
                del running[name]
                self.true[name] = (start, max(start + 1, now_ms()))
                self._tell(name, *self.true[name])
            self._stop.wait(0.02)

    def _tell(self, name: str, start: int, end: int | None) -> None:
        card = int(name[1:]) % 64
        pod = gpu_pod(name, card=card, percent=10, bound_ms=start, started_ms=start, ended_ms=end)
        self.api.put("pods", pod)

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        """Rows of the ledger, straight from the database."""
        with psycopg.connect(self.url.replace("+psycopg", "")) as connection:
            return connection.execute(statement).fetchall()

    @property
    def term(self) -> tuple[int, str]:
        """The newest term and its holder."""
        ((number, holder),) = self.ask("SELECT term, holder FROM terms")
        return number, holder

    def leader(self) -> Process:
        """The replica that settles, by the term's holder."""
        (found,) = [each for each in self.replicas if f"holder={self.term[1]}" in each.log()]
        return found

    def postings(self) -> int:
        """How many there are."""
        ((count,),) = self.ask("SELECT count(*) FROM postings")
        return int(count)

    def assert_exact(self, by: Process) -> None:
        """Once all pods have ended, each is charged exactly what it ran, and the days are the sums of it."""
        self.rest()
        self.api.put("leases", lease(now_ms() + HOUR))
        span = f"from={now_ms() - HOUR}&to={now_ms() + HOUR}"
        rows: list[Json] = []

        def all_posted() -> bool:
            status, report = by.call("GET", f"/v1/usage?group=pod&{span}", ADMIN)
            rows[:] = report["rows"] if status == 200 else []
            return len(rows) == len(self.true) and not any(row["pending"] for row in rows)

        by.wait("every pod to be posted", all_posted)
        charged = {row["pod"]: row["amount"] for row in rows}
        assert charged == {name: 100 * (end - start) for name, (start, end) in self.true.items()}
        ((posted,),) = self.ask("SELECT sum(amount) FROM postings")
        ((days,),) = self.ask("SELECT sum(amount) FROM days")
        assert posted == days == sum(charged.values())


def metrics_of(replica: Process) -> str:
    return str(replica.call("GET", "/metrics")[1])


def settlers_of(replica: Process) -> list[int]:
    """The process IDs of the replica's settler: one, or none while it is started again."""
    assert replica.running is not None
    return children(replica.running.pid).get("settle", [])


def settler_of(replica: Process) -> int:
    """The one that runs now, or the next."""
    found: list[int] = []

    def one() -> bool:
        found[:] = settlers_of(replica)
        return len(found) == 1

    replica.wait("a settler", one)
    return found[0]


def api_server() -> FakeApiServer:
    """One node, a budget of a namespace, and an administrator."""
    api = FakeApiServer()
    api.tokens[ADMIN] = user_status("admin")
    api.allowed |= {("admin", "get", right, "") for right in ("standings", "budgets", "usage")}
    api.put("nodes", node("n1", cards=64))
    api.put("leases", lease(now_ms()))
    api.put("configmaps", budgets(team_a="gpuHours: 100\nperiod: year\nonExhausted: deprioritize"))
    return api


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("replicas")
    api = api_server()
    with ExitStack() as stack:
        url = stack.enter_context(fresh_postgresql())
        replicas = []
        for name in ("one", "two"):
            (folder / name).mkdir()
            address = stack.enter_context(serving(api))
            config = kubeconfig(folder / name, address)
            made = stack.enter_context(
                prepared(folder / name, config, f"--lease-duration={LEASE_S}s", traced=True)
            )
            made.url = url
            replicas.append(made)
        yield Pair(api, replicas, url)


@pytest.fixture
def pair(both: Pair) -> Iterator[Pair]:
    both.begin()
    yield both
    both.rest()


def other_than(pair: Pair, replica: Process) -> Process:
    (other,) = [each for each in pair.replicas if each is not replica]
    return other


def test_all_serve_and_one_settles(pair: Pair) -> None:
    leader = pair.leader()
    follower = other_than(pair, leader)

    assert "bursar_settler_leads 1.0" in metrics_of(leader)
    assert "bursar_settler_leads 0.0" in metrics_of(follower)
    assert 'bursar_database{kind="postgresql"} 1.0' in metrics_of(follower)
    leader.wait("its size", lambda: 'bursar_database_bytes{kind="postgresql"} ' in metrics_of(leader))
    assert "bursar_database_free_bytes{" not in metrics_of(leader)
    assert follower.call("GET", "/readyz") == (200, "ok\n")
    pair.assert_exact(follower)
    span = f"from={now_ms() - HOUR}&to={now_ms()}"
    told = [each.call("GET", f"/v1/usage?group=pod&{span}", ADMIN) for each in pair.replicas]
    assert told[0][0] == 200
    assert told[0][1]["rows"] == told[1][1]["rows"]


def test_a_replica_killed_with_all_its_processes_is_followed_and_nothing_is_lost(pair: Pair) -> None:
    leader = pair.leader()
    follower, before = other_than(pair, leader), pair.term
    leader.wait("a charge", lambda: pair.postings() > 0)

    leader.kill()
    leader.running = None
    follower.wait("the next term", lambda: pair.term != before)

    assert pair.term[0] == before[0] + 1
    assert len({*pair.api.holders} - {""}) == 2
    pair.assert_exact(follower)


def test_after_a_settler_ends_in_order_the_other_settles_at_once(pair: Pair) -> None:
    leader = pair.leader()
    before = pair.term

    assert leader.end() == 0
    leader.running = None

    follower = other_than(pair, leader)
    follower.wait("the next term", lambda: pair.term != before)
    assert "" in pair.api.holders
    pair.assert_exact(follower)


def test_a_settler_that_was_killed_is_started_again_without_waiting_for_its_own_lease(pair: Pair) -> None:
    leader = pair.leader()
    before = pair.term

    with stopped(settler_of(other_than(pair, leader))):  # on a busy machine a start may outlast the Lease
        os.kill(settler_of(leader), signal.SIGKILL)
        leader.wait("the next term", lambda: pair.term != before)

    assert pair.term == (before[0] + 1, before[1])
    pair.assert_exact(leader)


@contextmanager
def stopped(process: int) -> Iterator[None]:
    """A process that stands still meanwhile, as on a machine that is too busy or was frozen."""
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


def test_a_paused_settler_that_wakes_up_after_another_took_over_writes_nothing_more(pair: Pair) -> None:
    leader = pair.leader()
    follower, before = other_than(pair, leader), pair.term
    paused = settler_of(leader)
    with stopped(paused):
        follower.wait("the next term", lambda: pair.term != before)
        settled = pair.postings()
        follower.wait("its charges", lambda: pair.postings() > settled + 5)
    leader.wait("the next one", lambda: settlers_of(leader) not in ([], [paused]))

    assert pair.term[1] != before[1]
    assert len({*pair.api.holders} - {""}) == 2
    assert "Traceback" not in leader.log() + follower.log()
    pair.assert_exact(leader)


def test_a_settler_cut_off_from_the_lease_goes_on_until_the_database_says_that_its_term_is_over(
    pair: Pair,
) -> None:
    leader = pair.leader()
    follower, before, cut_off = other_than(pair, leader), pair.term, settler_of(leader)
    pair.api.cut.add(json.loads(leader.kubeconfig.read_text())["clusters"][0]["cluster"]["server"])

    leader.wait("its word", lambda: "event=lease-unreachable" in leader.log())
    settled = pair.postings()
    leader.wait("its charges", lambda: pair.term != before or pair.postings() > settled)
    leader.wait("its end", lambda: 'reason="another settler has started"' in leader.log())

    leader.wait("the next one", lambda: settlers_of(leader) not in ([], [cut_off]))
    assert f"epoch {before[0]} of {before[1]} is over: {pair.term[1]} has started epoch" in leader.log()
    assert pair.term[1] != before[1]
    pair.assert_exact(follower)


def test_a_settler_paused_inside_a_transaction_delays_no_other_and_writes_nothing(
    pair: Pair,
) -> None:
    leader = pair.leader()
    follower, before = other_than(pair, leader), pair.term
    paused = settler_of(leader)
    try:
        stop_in_a_transaction(paused)
        follower.wait("the next term", lambda: pair.term != before)
    finally:
        os.kill(paused, signal.SIGCONT)
    leader.wait("the next one", lambda: settlers_of(leader) not in ([], [paused]))

    assert pair.term[1] != before[1]
    pair.assert_exact(leader)


def stop_in_a_transaction(settler: int) -> None:
    """Stop the settler at a moment when it has begun to write and has not committed yet."""
    where = f"host=127.0.0.1 port={server().port} user=postgres dbname=postgres"
    seen = (
        "SELECT 1 FROM pg_stat_activity WHERE application_name = 'bursar-settler'"
        " AND backend_xid IS NOT NULL AND state = 'idle in transaction'"
    )
    until = time.monotonic() + WITHIN_S
    with psycopg.connect(where, autocommit=True) as connection:
        while time.monotonic() < until:
            if connection.execute(seen).fetchone():
                os.kill(settler, signal.SIGSTOP)
                if connection.execute(seen).fetchone():
                    return
                os.kill(settler, signal.SIGCONT)
    raise AssertionError("never seen inside a transaction")


def test_a_lone_replica_that_was_killed_settles_again_at_once_and_the_answers_agree_meanwhile(
    tmp_path: Path,
) -> None:
    """Its Lease lasts five minutes; the budget runs out while it is away."""
    api = FakeApiServer()
    api.tokens[ADMIN] = user_status("admin")
    api.allowed |= {("admin", "get", "standings", ""), ("admin", "get", "budgets", "team-a")}
    began = now_ms()
    api.put("nodes", node("n1", cards=64))
    api.put("leases", lease(began))
    api.put("pods", gpu_pod("p", bound_ms=began, started_ms=began))
    api.put(
        "configmaps",
        budgets(team_a="gpuHours: 0.002\nperiod: year\nonExhausted: deny", _settings="lookahead: 0s"),
    )
    flags = ("--lease-duration=5m", "--pod-uid=uid-of-the-pod")
    with (
        fresh_postgresql() as url,
        serving(api) as address,
        prepared(tmp_path, kubeconfig(tmp_path, address), *flags) as process,
    ):
        process.url = url

        def served() -> str:
            listed = process.call("GET", "/v1/standings", ADMIN)[1]["namespaces"].get("team-a", {})
            return str(listed.get("standing", ""))

        def budget() -> str:
            return str(process.call("GET", "/v1/budgets/team-a", ADMIN)[1]["standing"])

        process.start_ready()
        process.wait("the budget", lambda: served() == "IN_BUDGET")
        process.kill()
        process.start()
        process.wait("an answer", lambda: process.call("GET", "/livez")[0] == 200)

        def is_over() -> bool:
            api.put("leases", lease(now_ms()))
            api.bookmark()
            before, between, after = served(), budget(), served()
            assert between in (before, after)
            return after == "OVER_BUDGET"

        process.wait("the end of the budget", is_over)
        assert process.log().count("event=settler-started") == 2
