"""PostgreSQL fails over: what cannot be written is refused; nothing is lost in silence or charged twice."""

from collections.abc import Iterator

import pytest

from tests.timekeeper.failover import Servers, servers
from tests.timekeeper.worlds import GPU, HOUR, MINUTE, SECOND, T0, Town, budgets, gpu_pod, lease, node
from timekeeper.settler.settler import Settler
from timekeeper.store import fencing
from timekeeper.store.engine.engine import Store, open_store
from timekeeper.store.fencing import EpochOverError, WentBackError

pytestmark = pytest.mark.make_all("PostgreSQL")

POD = gpu_pod(started_ms=T0)
BEGAN = T0 + 30 * MINUTE + 5 * SECOND  # of another pod, in the time that is lost


@pytest.fixture
def two() -> Iterator[Servers]:
    with servers() as running:
        yield running


@pytest.fixture
def town(two: Servers) -> Iterator[Town]:
    built = Town(two.url)
    built.begin(
        ("nodes", node()), ("leases", lease(T0)), ("configmaps", budgets(team_a="gpuHours: 9\nperiod: month"))
    )
    built.change("pods", POD)
    yield built
    built.close()


def test_on_a_standby_writes_are_refused_and_readyz_fails_until_the_address_leads_to_the_primary(
    two: Servers, town: Town
) -> None:
    two.catch_up()
    elsewhere = Town(two.url, town.clock)  # a replica on this address that serves alone
    elsewhere.reviews = town.reviews
    two.address.leads_to = two.standby.port
    elsewhere.store.close()

    assert elsewhere.get("/v1/budgets/team-a").status_code == 200  # a reader has used the connection
    for _ in range(2):
        answer = elsewhere.beat(POD, 1)
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "2")
        assert elsewhere.get("/readyz").status_code == 503
        assert elsewhere.get("/livez").status_code == 200
        grant = elsewhere.post("/budget/team-a/increase", {"minutes": 60}, **{"Idempotency-Key": "k"})
        assert grant.status_code == 503
    assert "database: " in elsewhere.get("/readyz").get_data(as_text=True)

    two.address.leads_to = two.primary.port
    assert elsewhere.beat(POD, 1).status_code == 200
    assert elsewhere.get("/readyz").status_code == 200
    elsewhere.close()


def fail_over(two: Servers) -> None:
    """The old primary is fenced off, and its clients are thrown out."""
    two.primary.stop()
    two.fail_over()


def test_a_synchronous_standby_that_takes_over_has_lost_nothing(two: Servers, town: Town) -> None:
    two.wait_for_each_other()
    town.advance(30 * MINUTE)
    assert town.beat(POD, 1).status_code == 200
    granted = town.post("/budget/team-a/increase", {"minutes": 60}, **{"Idempotency-Key": "k"})
    assert granted.status_code == 200

    fail_over(two)
    town.advance(MINUTE)
    town.change("pods", gpu_pod(started_ms=T0, ended_ms=T0 + 31 * MINUTE))

    assert town.charged() == GPU * 31 * MINUTE
    assert town.budget()["gpuHours"]["granted"] == "10"
    assert town.get("/readyz").status_code == 200


def behind(two: Servers, town: Town) -> None:
    """The standby does not receive ten seconds in which a card is used, one pod ends and another begins."""
    town.advance(30 * MINUTE)
    two.catch_up()
    two.standby.cut_off()
    town.advance(5 * SECOND)
    town.change("pods", gpu_pod("q", card=1, bound_ms=BEGAN, started_ms=BEGAN))
    town.change("pods", gpu_pod(started_ms=T0, ended_ms=town.clock()), deleted=True)
    town.advance(5 * SECOND)
    assert town.postings()[-1][3] == "settled"


def test_what_an_asynchronous_standby_lacks_is_made_again_once(two: Servers, town: Town) -> None:
    behind(two, town)

    fail_over(two)
    town.clock.turn(SECOND)
    with pytest.raises(WentBackError, match="lost that of") as lost:
        town.tick()
    town.resume()
    town.advance(MINUTE)
    town.change("pods", gpu_pod("q", card=1, started_ms=BEGAN, ended_ms=town.clock()))
    ran_ms = town.clock() - BEGAN
    town.advance(HOUR)

    assert "grants, heartbeats and decisions of that time may be lost" in str(lost.value)
    assert town.postings("uid-q") == [(BEGAN, BEGAN + ran_ms, GPU, "settled")]
    # the end of the other one is nowhere any more: its last evidence, and the longest grace
    assert town.charged() == GPU * (ran_ms + 30 * MINUTE + 10 * MINUTE)


def settler(store: Store, holder: str) -> Settler:
    return Settler(store, lambda: T0, lambda _: None, holder)


def test_two_settlers_with_the_same_number_are_told_apart_by_their_holders(two: Servers, town: Town) -> None:
    two.catch_up()
    two.standby.cut_off()
    first = settler(town.store, "first")
    two.fail_over()
    store = open_store(two.url)
    second = settler(store, "second")

    assert first.epoch.number == second.epoch.number
    with pytest.raises(EpochOverError, match="of first is over: second"), fencing.writing(store, first.epoch):
        pass
    with store.reading() as connection, pytest.raises(EpochOverError):
        fencing.confirm(connection, first.epoch)
    with fencing.writing(store, second.epoch):
        pass
    store.close()


def test_an_old_primary_that_lives_on_takes_nothing_of_the_new_one(two: Servers, town: Town) -> None:
    """A replica that is still connected to it settles there; once its connections are cut it follows."""
    two.catch_up()
    two.fail_over()
    other = Town(two.url, town.clock)
    other.objects, other.reviews = town.objects, town.reviews
    other.list_all()
    other.tick()
    town.advance(MINUTE)
    other.advance()
    assert other.charged() == town.charged() == GPU * MINUTE

    two.primary.stop()
    town.clock.turn(SECOND)
    with pytest.raises(EpochOverError):
        town.tick()
    other.change("pods", gpu_pod(started_ms=T0, ended_ms=T0 + MINUTE))
    assert other.charged() == GPU * MINUTE
    other.close()


def test_a_fenced_primary_takes_nothing_more_on_connections_that_live_on(two: Servers, town: Town) -> None:
    two.catch_up()
    assert town.get("/v1/budgets/team-a").status_code == 200  # a reader has used the connection
    assert town.beat(POD, 1).status_code == 200

    two.primary.as_admin("ALTER SYSTEM SET default_transaction_read_only = on")
    two.primary.as_admin("SELECT pg_reload_conf()")
    two.wait("SELECT 1 WHERE current_setting('default_transaction_read_only') = 'on'", two.primary)
    assert town.beat(POD, 2).status_code == 503
    assert town.get("/readyz").status_code == 503
    town.clock.turn(MINUTE)
    assert town.tick() is False

    two.fail_over()
    assert town.beat(POD, 2).status_code == 200
    assert town.tick() is True
    assert town.get("/readyz").status_code == 200
    assert two.standby.as_admin("SELECT pg_is_in_recovery()") == [(False,)]
