"""The agent's reports over verified TLS to a played timekeeper, and as the real timekeeper reads them."""

from contextlib import closing
from pathlib import Path

from deploy.local.identity import LocalAuthority, new_authority
from deploy.local.limits import LONGEST_S
from sidecar import settings
from sidecar.beats import HeartbeatReply
from sidecar.heartbeat_client import Delivered, HeartbeatClient
from sidecar.node.state import reports
from sidecar.node.state.reports import UsageInterval, document
from tests.node.unit.test_reports import FINE, World, seen
from tests.sidecar.worlds import SILENCE, Timekeeper, variables
from tests.timekeeper.rows import hours
from tests.timekeeper.worlds import T0, Town, agent_status, gpu_pod, node, token
from timekeeper.edge.outbox import NotDelivered, Post

NOW_MS = 7_000  # since the boot


def client(
    folder: Path, keeper: Timekeeper, authority: LocalAuthority, timeout_s: float = LONGEST_S
) -> HeartbeatClient:
    read = settings.read([], variables(folder, keeper.url, authority))
    way = reports.PATH, reports.document
    return HeartbeatClient(read, lambda: NOW_MS, None, lambda *_: None, timeout_s, *way)


def test_the_courier_carries_reports_over_verified_tls(
    tmp_path: Path, timekeeper: Timekeeper, authority: LocalAuthority
) -> None:
    timekeeper.answer = lambda _: (200, {"version": 1, "interval_ms": 20_000})
    post = Post("run", 7, (UsageInterval(NOW_MS - 1_000, seen()),))

    with closing(client(tmp_path, timekeeper, authority)) as way:
        assert way.deliver(post) == Delivered(HeartbeatReply(20_000, None, None))

    (arrival,) = timekeeper.arrivals
    assert (arrival.path, arrival.token, arrival.key) == ("/v1/nodeusage", "first-token", ("run", 7))
    (use,) = arrival.document["uses"]
    assert use.pop("age_ms") == 1_000
    card = {"uuid": "GPU-0", "utilisation": 50, "memory_mib": 8_000}
    assert use == {"pods": [{"uid": "uid-p", "cards": [card]}], "cards": [card]}


def test_a_timekeeper_of_another_authority_gets_no_report(tmp_path: Path, timekeeper: Timekeeper) -> None:
    with closing(client(tmp_path, timekeeper, new_authority("another"))) as way:
        outcome = way.deliver(Post("run", 1, (UsageInterval(0, seen()),)))

    assert isinstance(outcome, NotDelivered)
    assert "certificate is not accepted" in outcome.reason
    assert timekeeper.arrivals == []


def test_a_timekeeper_that_never_answers_costs_the_timeout(
    tmp_path: Path, timekeeper: Timekeeper, authority: LocalAuthority
) -> None:
    timekeeper.answer = lambda _: SILENCE

    with closing(client(tmp_path, timekeeper, authority, 0.2)) as way:
        assert way.deliver(Post("run", 1, (UsageInterval(0, seen()),))) == NotDelivered(
            "no answer within 0.2 s", False
        )


def test_the_real_timekeeper_takes_what_the_agent_writes(tmp_path: Path) -> None:
    town = Town(tmp_path)
    town.begin(("nodes", node()), ("pods", gpu_pod(started_ms=T0)))
    agent = token("agent")
    town.reviews.tokens[agent] = agent_status()
    world = World()

    for number in range(1, 4):
        town.clock.turn(15_000)
        world.turn(15_000, look=seen())
        sent = document(world.posts[-1], world.now_ms)
        answer = town.post("/v1/nodeusage", sent, agent)
        assert (answer.status_code, sent["sequence"]) == (200, number)
        world.reports.on_posted(FINE, world.now_ms)

    with town.store.reading() as connection:
        (found,) = hours(connection, "uid-p", "node").values()
    assert (found.covered_ms, found.milli_ms) == (30_000, 500 * 30_000)
    town.close()
