"""How busy the cards are, asked of the timekeeper for the policy `load`: when, what of it counts, and for how
long."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from scheduler_ext.clients.card_load_poller import (
    PATH,
    POLL_EVERY_MS,
    STALE_MS,
    WANTED_MS,
    Measuring,
    UndecodableUsageError,
    decode,
)
from scheduler_ext.clients.timekeeper import client
from scheduler_ext.scoring.card_points import BUSY, USED_MEMORY, Scale
from scheduler_ext.settings import Timekeeper as Asked
from tests.scheduler_ext.conftest import Start
from tests.scheduler_ext.worlds import Json, node, percent
from tests.support.exposition import sample
from tests.support.simulated_timekeeper import SimulatedTimekeeper
from tests.support.tls import Tls
from tests.support.waiting import eventually
from timekeeper.core.values import Card

LAST_HEARD = "bursar_extender_usage_last_success_timestamp_seconds"


def usage(revision: str = "1", **nodes: dict[str, int | None]) -> Json:
    """A document with each card's utilisation."""
    told = {
        name: {uuid: {"uuid": uuid, "utilisation": busy, "memory_mib": 0} for uuid, busy in cards.items()}
        for name, cards in nodes.items()
    }
    return {"version": 1, "revision": revision, "nodes": told}


class World:
    """One that asks, with a clock that is turned by hand, and what it logs and counts."""

    def __init__(self, folder: Path, url: str, ca: str, always: bool = False) -> None:
        self.lines: list[str] = []
        self.polls: list[str] = []
        self.now_ms = 1_000
        self.cards = [("a", Card(f"GPU-{index}", index, "A100", 40_000)) for index in range(3)]
        (folder / "token").write_text("t")
        (folder / "ca.crt").write_text(ca)
        self.measuring = Measuring(
            client(Asked(url, folder / "ca.crt", folder / "token", 30_000), PATH),
            decode,
            lambda: self.cards,
            Scale(),
            lambda: self.now_ms,
            lambda event, **fields: self.lines.append(f"{event} {fields.get('error', 'none')}"),
            self.polls.append,
            always,
        )

    def told(self, now_ms: int) -> Any:
        """The figures at this moment."""
        self.now_ms = now_ms
        return self.measuring.figures()

    def polled(self, now_ms: int) -> Any:
        """The figures after a poll at this moment."""
        self.now_ms = now_ms
        self.measuring.poll()
        return self.measuring.figures()


@pytest.fixture
def timekeeper(tls: Tls) -> Iterator[SimulatedTimekeeper]:
    """A timekeeper that knows of two nodes."""
    with SimulatedTimekeeper(tls, usage(a={"GPU-0": 70, "GPU-1": None}, b={"GPU-2": 0})) as running:
        yield running


@pytest.fixture
def world(tmp_path: Path, tls: Tls, timekeeper: SimulatedTimekeeper) -> Iterator[World]:
    """One that trusts that timekeeper."""
    made = World(tmp_path, timekeeper.url, tls.ca.bundle.decode())
    yield made
    made.measuring.close()


def test_the_figures_are_thousandths_by_card(world: World, timekeeper: SimulatedTimekeeper) -> None:
    assert world.told(0) is None

    assert world.polled(0) == {"GPU-0": 700, "GPU-2": 0}
    assert timekeeper.asked[0]["path"] == "/v1/nodeusage"
    assert (world.polls, world.lines) == (["heard"], ["usage-updated none"])


def test_what_has_not_changed_is_the_same_object(world: World, timekeeper: SimulatedTimekeeper) -> None:
    first = world.polled(0)
    assert world.polled(10_000) is first
    assert timekeeper.answered == [200, 304]

    timekeeper.document = usage("2", a={"GPU-0": 70}, b={"GPU-2": 0})
    assert world.polled(20_000) is first
    timekeeper.document = usage("3", a={"GPU-0": 74}, b={"GPU-2": 4})
    assert world.polled(30_000) is first  # to the nearest tenth it is the same
    timekeeper.document = usage("4", a={"GPU-0": 75}, b={"GPU-2": 5})
    assert world.polled(40_000) == {"GPU-0": 800, "GPU-2": 100}


def test_no_poll_is_made_while_no_pod_uses_the_figures(world: World) -> None:
    assert not world.measuring.due()

    world.told(5_000)
    assert world.measuring.due()
    world.polled(5_000)
    assert not world.measuring.due()
    world.now_ms = 5_000 + POLL_EVERY_MS
    assert world.measuring.due()

    world.now_ms = 5_000 + WANTED_MS + 1
    assert not world.measuring.due()


def test_where_load_is_the_clusters_policy_it_is_polled_from_the_start_and_for_ever(
    tmp_path: Path, tls: Tls
) -> None:
    world = World(tmp_path, "https://127.0.0.1:1", tls.ca.bundle.decode(), always=True)

    assert world.measuring.due()
    world.measuring.poll()
    assert world.polls == ["failed"]
    world.now_ms += 10 * WANTED_MS
    assert world.measuring.due()


def test_figures_outlive_failures_until_they_are_too_old_and_that_is_reported_once(
    world: World, timekeeper: SimulatedTimekeeper
) -> None:
    good, timekeeper_says = timekeeper.document, {"GPU-0": 700, "GPU-2": 0}
    world.polled(0)
    timekeeper.document = None

    assert world.polled(10_000) == timekeeper_says
    assert world.polled(STALE_MS) == timekeeper_says
    assert world.told(STALE_MS + 1) is None
    timekeeper.document = good
    assert world.polled(STALE_MS + 2) == timekeeper_says
    unheard = "usage-failed TimekeeperError: the timekeeper answered 503"
    assert world.lines == ["usage-updated none", unheard, "usage-updated none"]
    assert world.polls == ["heard", "failed", "failed", "heard"]


def test_a_timekeeper_that_knows_of_no_card_is_as_one_that_says_nothing(
    world: World, timekeeper: SimulatedTimekeeper
) -> None:
    timekeeper.document = usage()

    assert world.polled(0) is None


def test_a_card_that_two_nodes_claim_is_measured_by_neither() -> None:
    body = orjson.dumps(usage(a={"GPU-0": 10, "GPU-1": 20}, b={"GPU-0": 90}, c={"GPU-0": 50}))

    assert decode(body) == {"GPU-1": {BUSY: 20, USED_MEMORY: 0}}


def test_a_card_that_joins_has_its_figures_after_the_next_poll_though_the_answer_is_the_same(
    world: World, timekeeper: SimulatedTimekeeper
) -> None:
    joined, world.cards = world.cards, world.cards[:1]

    assert world.polled(0) == {"GPU-0": 700}
    world.cards = joined
    assert world.polled(10_000) == {"GPU-0": 700, "GPU-2": 0}
    assert timekeeper.answered == [200, 304]


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b'{"version":2,"nodes":{}}',
        b'{"version":1,"nodes":[]}',
        b'{"version":1,"nodes":{"a":[]}}',
        b'{"version":1,"nodes":{"a":{"GPU-0":{}}}}',
        b'{"version":1,"nodes":{"a":{"GPU-0":{"utilisation":"7"}}}}',
        b'{"version":1,"nodes":{"a":{"GPU-0":{"utilisation":true}}}}',
        b'{"version":1,"nodes":{"a":{"GPU-0":{"utilisation":101}}}}',
        b'{"version":1,"nodes":{"a":{"GPU-0":{"utilisation":-1}}}}',
    ],
)
def test_what_is_no_use_of_cards_is_refused(body: bytes) -> None:
    with pytest.raises(UndecodableUsageError):
        decode(body)


def test_the_running_extender_places_by_what_is_measured(
    start: Start, timekeeper: SimulatedTimekeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: 1_795_219_200.5)
    timekeeper.document = usage(a={"a-GPU-0": 5}, b={"b-GPU-0": 90})
    world = start(*timekeeper.flags)
    assert sample(world.client.get("/metrics").text, LAST_HEARD) == 0
    for name in ("a", "b"):
        world.put_node(node(name))
    quiet = percent(10, annotations={"bursar.dev/policy": "load"})
    asked = [each["path"] for each in timekeeper.asked]
    assert "/v1/nodeusage" not in asked

    eventually(lambda: world.prioritize(quiet, "a", "b") == {"a": 10, "b": 9})
    timekeeper.document = usage("2", a={"a-GPU-0": 95}, b={"b-GPU-0": 90})
    measuring = world.extender.polling.card_loads
    assert measuring is not None
    measuring.poll()
    assert world.prioritize(quiet, "a", "b") == {"a": 9, "b": 10}
    told = world.client.get("/metrics").text
    assert 'bursar_extender_usage_polls_total{outcome="heard"}' in told
    assert sample(told, LAST_HEARD) == 1_795_219_200.5
    timekeeper.document = None
    measuring.poll()
    told = world.client.get("/metrics").text
    assert 'bursar_extender_usage_polls_total{outcome="failed"} 1.0' in told
    assert sample(told, LAST_HEARD) == 1_795_219_200.5
