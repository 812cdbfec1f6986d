"""Asking the timekeeper: what is sent, what survives its failures, and files that change under us."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local.limits import LONGEST_S
from tests.runtime.lines import into
from tests.support.exposition import sample
from tests.support.simulated_timekeeper import SimulatedTimekeeper, entry, standings
from tests.support.tls import Tls
from tests.support.waiting import eventually
from tests.webhook.process_metrics import of_this_process
from webhook.metrics import WebhookMetrics
from webhook.server.wiring import standings_poller


class World:
    """A poller with a clock that is turned by hand, and what it logs."""

    def __init__(self, folder: Path, url: str, ca: str | None) -> None:
        self.lines: list[str] = []
        self.now_ms, self.ca = 0, ca
        self.token = folder / "token"
        self.token.write_text("first\n")
        self.metrics: WebhookMetrics = of_this_process()
        self.standings = standings_poller(
            url,
            self.token,
            lambda: self.ca,
            lambda: self.now_ms,
            into(self.lines),
            self.metrics,
        )

    def poll(self, now_ms: int = 0) -> str | None:
        """Asks at this moment; gives the standing of team-a in the table that is there then."""
        self.now_ms = now_ms
        self.standings.poll()
        table = self.standings.value
        return None if table is None else table.namespaces["team-a"].standing.status


@pytest.fixture
def world(tmp_path: Path, tls: Tls, timekeeper: SimulatedTimekeeper) -> Iterator[World]:
    """A poller that trusts that timekeeper."""
    made = World(tmp_path, timekeeper.url, tls.ca.bundle.decode())
    yield made
    made.standings.close()


def confirmed_ms(world: World) -> int:
    """When the timekeeper was last heard."""
    table = world.standings.value
    assert table is not None
    return table.confirmed_ms


def last_heard(world: World) -> float:
    """The same as the metrics say it, Unix time."""
    name = "bursar_webhook_standings_last_success_timestamp_seconds"
    return sample(world.metrics.exposition().decode(), name)


def test_a_failed_poll_counts_as_an_attempt(world: World, timekeeper: SimulatedTimekeeper) -> None:
    timekeeper.end()
    before = world.standings.was_polled

    assert world.poll() is None
    assert (before, world.standings.was_polled) == (False, True)


def test_a_table_is_read_once_and_then_only_confirmed(world: World, timekeeper: SimulatedTimekeeper) -> None:
    assert world.poll(10) == "IN_BUDGET"
    assert world.poll(1_010) == "IN_BUDGET"

    assert timekeeper.answered == [200, 304]
    assert confirmed_ms(world) == 1_010
    table = world.standings.value
    assert table is not None
    assert table.read_ms == 10


def test_a_changed_table_is_read_anew(world: World, timekeeper: SimulatedTimekeeper) -> None:
    world.poll()
    timekeeper.document = standings(revision="2", team_a=entry("OVER_BUDGET"))

    assert world.poll() == "OVER_BUDGET"


def test_the_token_is_read_before_each_poll(world: World, timekeeper: SimulatedTimekeeper) -> None:
    world.poll()
    world.token.write_text("second")
    world.poll()

    assert [each["authorization"] for each in timekeeper.asked] == ["Bearer first", "Bearer second"]


def test_a_failure_leaves_the_table_to_age_and_is_logged_once(
    world: World, timekeeper: SimulatedTimekeeper
) -> None:
    good = timekeeper.document
    world.poll(0)
    timekeeper.document = None

    assert [world.poll(now) for now in (1_000, 2_000, 3_000)] == ["IN_BUDGET"] * 3
    assert confirmed_ms(world) == 0
    timekeeper.document = good
    world.poll(4_000)

    assert world.lines == [
        "info event=standings-updated",
        'warning event=standings-failed error="TimekeeperError: the timekeeper answered 503"',
        "info event=standings-updated",
    ]
    assert confirmed_ms(world) == 4_000


def test_an_undecodable_table_leaves_the_last_good_one(world: World, timekeeper: SimulatedTimekeeper) -> None:
    world.poll()
    timekeeper.document = {"revision": "2", "version": 2}

    assert world.poll() == "IN_BUDGET"
    assert "UndecodableStandingsError: standings: not version 1" in world.lines[-1]


def test_a_spoilt_packing_leaves_the_last_good_table(world: World, timekeeper: SimulatedTimekeeper) -> None:
    world.poll()
    timekeeper.document, timekeeper.spoilt = standings(revision="2", team_a=entry("OVER_BUDGET")), True

    assert world.poll() == "IN_BUDGET"
    assert "standings-failed" in world.lines[-1]
    assert {each["accept-encoding"] for each in timekeeper.asked} == {"gzip"}


def test_the_time_of_the_last_answer_is_zero_until_the_first_and_stays_when_a_poll_fails(
    world: World, timekeeper: SimulatedTimekeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: 1_795_219_200.5)
    good, timekeeper.document = timekeeper.document, None
    world.poll(0)
    assert last_heard(world) == 0

    timekeeper.document = good
    world.poll(1_000)
    assert last_heard(world) == 1_795_219_200.5
    timekeeper.document = None
    monkeypatch.setattr("time.time", lambda: 1_795_219_203.0)
    world.poll(3_500)

    assert last_heard(world) == 1_795_219_200.5
    assert b'bursar_webhook_standings_polls_total{outcome="failed"} 2.0' in world.metrics.exposition()


@pytest.mark.parametrize("text", ["", " \n", "two\nlines", "nul\0"])
def test_a_token_file_without_a_token_sends_nothing(
    world: World, timekeeper: SimulatedTimekeeper, text: str
) -> None:
    world.token.write_text(text)

    assert world.poll() is None
    assert timekeeper.asked == []


def test_without_a_ca_no_request_is_sent(world: World, timekeeper: SimulatedTimekeeper) -> None:
    world.ca = None

    assert world.poll() is None
    assert "no CA bundle to verify the timekeeper with" in world.lines[-1]


def test_a_ca_that_no_longer_signs_the_timekeeper_ends_the_connection_to_it(
    world: World, timekeeper: SimulatedTimekeeper, tmp_path: Path
) -> None:
    world.poll(0)
    world.ca = Tls(tmp_path / "other").ca.bundle.decode()

    world.poll(1_000)

    assert confirmed_ms(world) == 0
    assert "its certificate is not accepted" in world.lines[-1]


def test_polling_goes_on_by_itself_until_it_is_ended(world: World, timekeeper: SimulatedTimekeeper) -> None:
    ended = threading.Event()
    thread = threading.Thread(target=world.standings.run, args=(ended,))
    thread.start()
    eventually(lambda: len(timekeeper.asked) >= 2, "two polls")
    ended.set()
    thread.join(LONGEST_S)

    assert not thread.is_alive()
    assert world.lines == ["info event=standings-updated"]
