"""Asking the timekeeper for the standings: what is sent, what survives its failures, and what ages."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from scheduler_ext import settings
from scheduler_ext.clients.timekeeper import Poller
from scheduler_ext.model.standing import UNHEARD, UNKNOWN, NamespaceStanding
from scheduler_ext.model.standing_table import decode, standings_at
from scheduler_ext.settings import Timekeeper as Asked
from tests.scheduler_ext.conftest import Running, Start
from tests.scheduler_ext.worlds import Json
from tests.support.exposition import sample
from tests.support.simulated_timekeeper import SimulatedTimekeeper, entry, standings
from tests.support.tls import Tls
from tests.support.waiting import eventually
from timekeeper.core.standings import UndecodableStandingsError

STALE_MS = 30_000
LAST_HEARD = "bursar_extender_standings_last_success_timestamp_seconds"


def says(in_: Json, generated_ms: int = 0, **namespaces: Any) -> Json:
    """A document whose default entry is the first."""
    return standings(**namespaces) | {"generated": generated_ms, "default": in_}


class World:
    """A poller with a clock that is turned by hand, and what it logs and counts."""

    def __init__(self, folder: Path, url: str, ca: str) -> None:
        self.lines: list[str] = []
        self.polls: list[str] = []
        self.now_ms = 0
        self.token, self.ca = folder / "token", folder / "ca.crt"
        self.token.write_text("first\n")
        self.ca.write_text(ca)
        self.poller = Poller(
            Asked(url, self.ca, self.token, STALE_MS),
            lambda: self.now_ms,
            lambda event, **fields: self.lines.append(f"{event} {fields.get('error', 'none')}"),
            self.polls.append,
        )

    def poll(self, now_ms: int = 0) -> str:
        """Asks at this moment; how team-a then stands."""
        self.now_ms = now_ms
        self.poller.poll()
        return self.poller.standings().of("team-a").status


@pytest.fixture
def world(tmp_path: Path, tls: Tls, timekeeper: SimulatedTimekeeper) -> Iterator[World]:
    """A poller that trusts that timekeeper."""
    made = World(tmp_path, timekeeper.url, tls.ca.bundle.decode())
    yield made
    made.poller.close()


def test_a_table_is_read_once_and_then_only_confirmed(world: World, timekeeper: SimulatedTimekeeper) -> None:
    assert (world.poll(0), world.poll(1_000)) == ("IN_BUDGET", "IN_BUDGET")

    assert timekeeper.answered == [200, 304]
    assert {each["accept-encoding"] for each in timekeeper.asked} == {"gzip"}
    assert world.polls == ["heard", "heard"]
    assert world.lines == ["standings-updated none"]


def test_what_has_not_changed_is_the_same_value(world: World, timekeeper: SimulatedTimekeeper) -> None:
    world.poll(0)
    before = world.poller.standings()
    world.poll(1_000)

    assert world.poller.standings() is before


def test_on_exhausted_and_the_policy_come_with_the_standings(
    world: World, timekeeper: SimulatedTimekeeper
) -> None:
    timekeeper.document = standings(
        team_a=entry("OVER_BUDGET", onExhausted="reclaim", policy="spread"),
        team_b=entry("IN_BUDGET", policy=""),
    )
    world.poll()

    told = world.poller.standings()
    assert told.of("team-a") == NamespaceStanding("OVER_BUDGET", "reclaim", "spread")
    assert told.of("team-b") == NamespaceStanding("IN_BUDGET", "deprioritize", "")
    assert told.of("elsewhere").status == "UNLIMITED"


def test_which_groups_account_decides_comes_with_the_standings() -> None:
    told = standings(
        a=entry("OVER_BUDGET", group="lab", groupDecides=True), b=entry("OVER_BUDGET", group="lab")
    )

    known = standings_at(decode(orjson.dumps(told), '"1"', 0), 0, 30_000)

    assert [known.of(name).deciding_group for name in ("a", "b", "c")] == ["_group.lab", "", ""]


def test_a_budget_in_observe_mode_changes_no_order(world: World, timekeeper: SimulatedTimekeeper) -> None:
    timekeeper.document = standings(team_a=entry("OVER_BUDGET", onExhausted="reclaim", mode="observe"))

    assert world.poll() == "UNLIMITED"


def test_the_token_and_the_ca_are_reread(
    world: World, timekeeper: SimulatedTimekeeper, tmp_path: Path
) -> None:
    world.poll()
    world.token.write_text("second")
    world.poll()
    assert [each["authorization"] for each in timekeeper.asked] == ["Bearer first", "Bearer second"]

    world.ca.write_text(Tls(tmp_path / "other").ca.bundle.decode())
    world.poll(1_000)

    assert world.polls[-1] == "failed"
    assert "its certificate is not accepted" in world.lines[-1]


@pytest.mark.parametrize("text", ["", " \n", "two\nlines", "nul\0"])
def test_a_token_file_without_a_token_sends_nothing(
    world: World, timekeeper: SimulatedTimekeeper, text: str
) -> None:
    world.token.write_text(text)

    assert world.poll() == "UNKNOWN"
    assert timekeeper.asked == []


def test_files_that_are_not_there_are_a_failure_that_is_reported(world: World) -> None:
    world.ca.unlink()

    assert world.poll() == "UNKNOWN"
    assert "ca.crt" in world.lines[-1]
    assert world.polls == ["failed"]


def test_a_failure_leaves_the_table_to_age_and_is_logged_once(
    world: World, timekeeper: SimulatedTimekeeper
) -> None:
    good = timekeeper.document
    world.poll(0)
    timekeeper.document = None

    assert [world.poll(now) for now in (1_000, STALE_MS, STALE_MS + 1)] == [
        "IN_BUDGET",
        "IN_BUDGET",
        "UNKNOWN",
    ]
    timekeeper.document = good
    assert world.poll(40_000) == "IN_BUDGET"

    unheard = "standings-failed TimekeeperError: the timekeeper answered 503"
    assert world.lines == ["standings-updated none", unheard, "standings-updated none"]
    assert world.polls == ["heard", "failed", "failed", "failed", "heard"]


def test_an_undecodable_or_spoilt_answer_leaves_the_last_good_table(
    world: World, timekeeper: SimulatedTimekeeper
) -> None:
    world.poll()
    timekeeper.document = {"revision": "2", "version": 2}
    assert world.poll() == "IN_BUDGET"
    assert "not version 1" in world.lines[-1]

    timekeeper.document, timekeeper.spoilt = standings(revision="3", team_a=entry("OVER_BUDGET")), True
    assert world.poll() == "IN_BUDGET"
    assert "standings-failed" in world.lines[-1]


def test_standings_age_while_no_poll_is_made(world: World, timekeeper: SimulatedTimekeeper) -> None:
    timekeeper.document = standings(
        team_a=entry("IN_BUDGET"), team_b=entry("IN_BUDGET", validUntil=500), team_c=entry("OVER_BUDGET")
    ) | {"generated": 0}
    world.poll(0)

    def told(now_ms: int) -> list[str]:
        world.now_ms = now_ms
        return [world.poller.standings().of(f"team-{each}").status for each in "abc"]

    assert told(499) == ["IN_BUDGET", "IN_BUDGET", "OVER_BUDGET"]
    assert told(500) == ["IN_BUDGET", "UNKNOWN", "OVER_BUDGET"]
    assert told(STALE_MS) == ["IN_BUDGET", "UNKNOWN", "OVER_BUDGET"]
    assert told(STALE_MS + 1) == ["UNKNOWN", "UNKNOWN", "OVER_BUDGET"]


def test_over_budget_does_not_age_until_its_end_and_then_is_unknown() -> None:
    body = says(
        entry("UNLIMITED"),
        generated_ms=1_000_000,
        over=entry("OVER_BUDGET", validUntil=1_100_000),
        paying=entry("IN_BUDGET", validUntil=1_010_000),
    )
    table = decode(orjson.dumps(body), "", 500)

    def words(at_ms: int) -> list[str]:
        told = standings_at(table, 500 + at_ms, STALE_MS)
        return [told.of(name).status for name in ("over", "paying", "elsewhere")]

    assert words(9_999) == ["OVER_BUDGET", "IN_BUDGET", "UNLIMITED"]
    assert words(10_000) == ["OVER_BUDGET", "UNKNOWN", "UNLIMITED"]
    assert words(STALE_MS + 1) == ["OVER_BUDGET", "UNKNOWN", "UNKNOWN"]
    assert words(99_999) == ["OVER_BUDGET", "UNKNOWN", "UNKNOWN"]
    assert words(100_000) == ["UNKNOWN"] * 3


def test_before_the_first_answer_every_standing_is_unknown() -> None:
    assert standings_at(None, 0, STALE_MS) is UNHEARD
    assert UNHEARD.of("anybody") == UNKNOWN


@pytest.mark.parametrize(
    "spoil",
    [
        lambda whole: b"{",
        lambda whole: b"[]",
        lambda whole: orjson.dumps(whole | {"default": entry("RICH")}),
        lambda whole: orjson.dumps(whole | {"default": entry("IN_BUDGET", onExhausted=None)}),
        lambda whole: orjson.dumps(whole | {"default": entry("IN_BUDGET", validUntil="soon")}),
        lambda whole: orjson.dumps(whole | {"generated": True}),
        lambda whole: orjson.dumps(whole | {"namespaces": []}),
        lambda whole: orjson.dumps({key: whole[key] for key in whole if key != "default"}),
    ],
)
def test_what_is_no_table_is_refused(spoil: Callable[[Json], bytes]) -> None:
    with pytest.raises(UndecodableStandingsError):
        decode(spoil(standings()), "", 0)


def test_the_running_extender_polls_each_second_and_counts(
    start: Start, timekeeper: SimulatedTimekeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: 1_795_219_200.5)
    world = start(*timekeeper.flags)

    eventually(lambda: world.extender.standings().of("team-a").status == "IN_BUDGET")
    timekeeper.document = standings(revision="2", team_a=entry("OVER_BUDGET"))
    eventually(lambda: world.extender.standings().of("team-a").over)
    told = world.client.get("/metrics").text
    assert sample(told, LAST_HEARD) == 1_795_219_200.5
    assert 'bursar_extender_standings_polls_total{outcome="heard"}' in told


def test_without_a_timekeeper_no_request_is_sent_and_every_standing_is_unknown(running: Running) -> None:
    assert running.extender.standings() is UNHEARD
    told = running.client.get("/metrics").text
    assert sample(told, LAST_HEARD) == 0


def test_the_flags_name_the_timekeeper_and_its_files(capsys: pytest.CaptureFixture[str]) -> None:
    asked = settings.read(["--timekeeper-url=https://t.x.svc"], {}).timekeeper

    files = Path("/etc/bursar/tls/ca.crt"), Path("/var/run/bursar/token/token")
    assert asked == Asked("https://t.x.svc", *files, 30_000)
    assert settings.read([], {}).timekeeper.url == ""
    with pytest.raises(SystemExit):
        settings.read([], {"BURSAR_TIMEKEEPER_URL": "http://t.x.svc"})
    assert '"http://t.x.svc" is not an https:// URL' in capsys.readouterr().err
