"""A PostgreSQL that is far away: how often a request waits for it."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.postgresql import fresh_postgresql, server
from tests.timekeeper.failover import Address
from tests.timekeeper.worlds import (
    HOUR,
    SECOND,
    T0,
    Town,
    budgets,
    gpu_pod,
    lease,
    node,
    pod_status,
    token,
)
from timekeeper.store.ledger import sessions_of

pytestmark = pytest.mark.make_all("PostgreSQL")

POD = gpu_pod(started_ms=T0)
MINE = token("uid-p")


class RoundTrips:
    """How many there were. ``hear``: what one client sends, whose messages begin with a letter and a
    length."""

    def __init__(self) -> None:
        self.count, self._begun = 0, b""

    def hear(self, data: bytes) -> None:
        self._begun += data
        while len(self._begun) > 4:
            is_start = self._begun[0] == 0  # a connection's first message has no letter
            length = int.from_bytes(self._begun[:4] if is_start else self._begun[1:5]) + (not is_start)
            if len(self._begun) < length:
                return
            self.count += self._begun[:1] in (
                b"Q",
                b"S",
            )  # Query, Sync: then it waits
            self._begun = self._begun[length:]


@pytest.fixture
def trips() -> RoundTrips:
    return RoundTrips()


@pytest.fixture
def far(trips: RoundTrips) -> Iterator[Town]:
    """Its pod has sent a heartbeat, so that the one connection is open."""
    with fresh_postgresql() as url, closing(Address(server().port, trips.hear)) as address:
        town = Town(url.replace(f":{server().port}/", f":{address.port}/"))
        town.begin(("nodes", node()), ("leases", lease(T0)))
        town.change("pods", POD)
        town.reviews.tokens[MINE] = pod_status(POD)
        assert beat(town, 1) == 200
        yield town
        town.close()


def beat(town: Town, sequence: int, boot: str = "run-1") -> int:
    """A heartbeat with figures."""
    card = {"uuid": "GPU-0", "utilisation": 50, "memory_mib": 10, "scope": "exclusive"}
    beats = [{"age_ms": 0, "devices": [card]}]
    body = {"version": 1, "boot": boot, "sequence": sequence, "beats": beats}
    return town.post("/v1/heartbeats", body, MINE).status_code


def test_a_heartbeat_is_two_round_trips_whatever_it_reads_and_writes(far: Town, trips: RoundTrips) -> None:
    taken = []
    for number in range(2, 12):
        far.clock.turn(SECOND)
        if number == 6:  # new standings, which the answer is by
            far.change("configmaps", budgets(team_a="gpuHours: 9\nperiod: month"))
        before = trips.count
        assert beat(far, number, boot=f"run-{number}") == 200  # after eight runs the oldest goes
        taken.append(trips.count - before)

    assert taken == [2] * 10
    assert far.get(f"/v1/usage?use=true&from={T0}&to={T0 + HOUR}").get_json()["rows"][0]["used"] > 0


def test_a_tick_is_few_round_trips_whatever_it_writes(far: Town, trips: RoundTrips) -> None:
    """Read at once what a tick always asks, then the sessions of new pods; take the turn, write, commit."""
    taken = []
    for number in range(6):
        pods = [gpu_pod(f"p{number}-{each}", started_ms=far.clock()) for each in range(5 * number)]
        for pod in pods:
            far.hear("pods", pod)
        if number == 4:
            far.hear("configmaps", budgets(team_a="gpuHours: 9\nperiod: month"))
        before = trips.count
        far.advance(11 * SECOND)
        taken.append(trips.count - before)

    with far.store.reading() as connection:
        assert len(sessions_of(connection, [f"uid-p5-{each}" for each in range(25)]).sessions) == 25
    assert max(taken) <= 8, taken


def test_readyz_asks_the_database_nothing(far: Town, trips: RoundTrips) -> None:
    far.look()
    before = trips.count

    assert [far.client.get("/readyz").text for _ in range(3)] == ["ok\n"] * 3
    assert trips.count == before


def test_a_heartbeat_on_a_connection_that_was_ended_meanwhile_notices_nothing(far: Town) -> None:
    server().as_admin("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = 'bursar'")

    assert beat(far, 2) == 200
