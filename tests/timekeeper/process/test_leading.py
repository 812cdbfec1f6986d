"""Who settles: the Lease elects, and the term in the database decides."""

from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event

import pytest
from sqlalchemy import text

from deploy.local.limits import LONGEST_S
from tests.support.clock import SecondsClock
from tests.support.kubeconfig import kubeconfig
from tests.support.waiting import eventually
from tests.timekeeper.fake_api_server import LEASE, FakeApiServer, serving
from tests.timekeeper.processes import Process, children, prepared
from tests.timekeeper.worlds import MINUTE, SECOND, T0, Town, gpu_pod, lease, node
from timekeeper.runtime.connect import connect
from timekeeper.settler.process import SettlerElection
from timekeeper.store import fencing as terms
from timekeeper.store import ledger as reading
from timekeeper.store.engine.engine import UnavailableError, open_store
from timekeeper.store.engine.schema import NODES


@pytest.fixture
def api() -> FakeApiServer:
    return FakeApiServer()


@pytest.fixture
def election_of(api: FakeApiServer, tmp_path: Path) -> Iterator[object]:
    clock = SecondsClock()
    with serving(api) as url:
        server = connect(kubeconfig(tmp_path, url))

        def make(me: str) -> tuple[SettlerElection, SecondsClock]:
            return SettlerElection(server, "bursar-system", me, 15_000, clock), clock

        yield make


def test_one_of_two_holds_the_lease_until_it_is_silent_for_its_duration(
    api: FakeApiServer, election_of: object
) -> None:
    (first, clock), (second, _) = election_of("one"), election_of("two")  # type: ignore[operator]

    assert (first.look(), second.look()) == (True, False)
    clock.s = 10
    assert (first.look(), second.look()) == (True, False)
    clock.s = 24.9
    assert second.look() is False
    clock.s = 25
    assert (second.look(), first.look()) == (True, False)
    assert api.holders == ["one", "two"]
    assert api.leases[LEASE]["spec"]["leaseTransitions"] == 1


def test_a_lease_given_back_is_taken_at_the_next_look(election_of: object) -> None:
    (first, _), (second, _) = election_of("one"), election_of("two")  # type: ignore[operator]
    first.look()
    second.give_back()
    assert second.look() is False

    first.give_back()

    assert second.look() is True


def test_without_an_api_server_no_leader_is_elected_and_none_is_lost(tmp_path: Path) -> None:
    away = connect(kubeconfig(tmp_path, "http://127.0.0.1:1"))
    election = SettlerElection(away, "bursar-system", "me", 2_000, SecondsClock())
    stop = Event()
    stop.set()

    assert election.look() is None
    assert election.wait(stop) is False
    election.give_back()
    assert election.lost is False


def test_who_finds_another_in_the_lease_stops(api: FakeApiServer, tmp_path: Path) -> None:
    with serving(api) as url:
        server = connect(kubeconfig(tmp_path, url))
        mine = SettlerElection(server, "bursar-system", "one", 250, SecondsClock())
        assert mine.look()
        stop = Event()
        mine.keep(stop)
        api.leases[LEASE]["spec"]["holderIdentity"] = "two"

        assert stop.wait(LONGEST_S)
        eventually(lambda: mine.lost)


def test_every_settler_begins_a_term_of_its_own(town: Town) -> None:
    with town.store.reading() as connection:
        assert terms.current(connection) == terms.Epoch(1, "settler")
    town.start_anew()
    with town.store.reading() as connection:
        assert terms.current(connection).number == 2


def test_a_settler_whose_term_is_over_writes_nothing_at_all(town: Town) -> None:
    town.begin(("nodes", node()), ("leases", lease(T0)))
    elder = town.settler
    town.resume()
    with town.store.reading() as connection:
        before = terms.current(connection)
    town.settler = elder
    town.clock.turn(2 * SECOND)
    town.node_heard()  # a watermark, which no key or CHECK would refuse

    with pytest.raises(terms.EpochOverError, match="epoch 1 of settler is over: settler has started epoch 2"):
        town.tick()
    with pytest.raises(terms.EpochOverError):
        town.tick()

    with town.store.reading() as connection:
        assert terms.current(connection) == before
    assert town.get("/readyz").status_code == 200


def test_before_everything_has_arrived_an_elder_settler_does_not_write_its_pulse_either(town: Town) -> None:
    elder = town.settler
    town.start_anew()
    town.settler = elder

    with pytest.raises(terms.EpochOverError):
        town.tick()


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_the_next_term_begins_after_the_transaction_in_which_the_last_one_writes(town: Town) -> None:
    town.begin(("nodes", node()), ("leases", lease(T0)))
    hurried = open_store(town.url, patience_ms=50)
    with (
        terms.writing(town.store, town.settler.epoch),
        pytest.raises(UnavailableError, match="lock timeout"),
        hurried.writing() as connection,
    ):
        terms.begin(connection, "next", T0)
    with hurried.writing() as connection:
        assert terms.begin(connection, "next", T0) == terms.Epoch(2, "next")
    hurried.close()


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_who_begins_ends_the_session_of_one_that_stands_still_inside_a_transaction(town: Town) -> None:
    town.begin(("nodes", node()), ("leases", lease(T0)))
    hurried = open_store(town.url, patience_ms=50)
    began: list[terms.Epoch] = []

    def take_over() -> None:
        age = text("SELECT max(clock_timestamp() - xact_start) > interval '2.1 s' FROM pg_stat_activity")
        with hurried.reading() as connection:
            eventually(lambda: bool(connection.execute(age).scalar_one()))
        with hurried.writing() as connection:
            began.append(terms.begin(connection, "next", T0))

    with pytest.raises(UnavailableError):
        write_a_node(town, meanwhile=take_over)

    assert began == [terms.Epoch(2, "next")]
    with hurried.reading() as connection:
        assert "never" not in reading.watermarks(connection)
    hurried.close()


def write_a_node(town: Town, meanwhile: Callable[[], None]) -> None:
    """As a tick of the settler does that stands still before its commit."""
    with terms.writing(town.store, town.settler.epoch) as connection:
        connection.execute(NODES.insert(), {"name": "never", "watermark_ms": 1})
        meanwhile()


def test_the_new_settler_knows_what_the_elder_wrote_last(town: Town) -> None:
    town.begin(("nodes", node()), ("leases", lease(T0)))
    town.change("pods", gpu_pod(started_ms=T0))
    elder = town.settler
    town.clock.turn(MINUTE)
    town.change("pods", gpu_pod(started_ms=T0, ended_ms=T0 + MINUTE))

    town.resume()

    assert town.postings() == [(T0, T0 + MINUTE, 1000, "settled")]
    town.settler = elder
    town.clock.turn(2 * SECOND)
    with pytest.raises(terms.EpochOverError):
        town.tick()


def test_two_settlers_on_one_file_the_elder_ends_with_a_sentence(api: FakeApiServer, tmp_path: Path) -> None:
    with serving(api) as url, prepared(tmp_path, kubeconfig(tmp_path, url), traced=True) as first:
        first.start_ready()
        assert first.running is not None
        elder = children(first.running.pid)["settle"]
        second = Process(first.folder, first.kubeconfig, first.launcher, traced=True)
        second.start()

        first.wait("the elder's end", lambda: "another settler has started;" in first.log())

        assert "two timekeepers must not share a file, so stop one of them" in first.log()
        assert len(elder) == 1
        assert second.end() == 0
        assert first.end() == 0
    assert api.leases == {}
