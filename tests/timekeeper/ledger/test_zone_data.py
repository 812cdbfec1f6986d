"""New time zone data in a running period: grants stay, and the next period begins where it ends."""

import struct
import zoneinfo
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from tests.support.profile import examples
from tests.timekeeper.worlds import DAY, HOUR, T0, Json, Town, budgets, gpu_pod, lease, node
from timekeeper.core.ledger.metering import day_begins_ms, period_at
from timekeeper.operations.audit.audit import audit
from timekeeper.operations.audit.finding import Finding

ZONE = "Asia/Almaty"
CACHES = (period_at, day_begins_ms)
GPU_HOUR = 3_600_000_000
Offsets = tuple[tuple[int, int], ...]  # from when on clocks are how many hours ahead of UTC


def data(offsets: Offsets) -> bytes:
    """A file of time zone data (RFC 9636, version 1)."""
    times = b"".join(struct.pack(">l", at_ms // 1000) for at_ms, _ in offsets)
    types = b"".join(struct.pack(">lBB", hours * 3600, 0, 0) for _, hours in offsets)
    head = struct.pack(">4s1s15x6l", b"TZif", b"\0", 0, 0, 0, len(offsets), len(offsets), 4)
    return head + times + bytes(range(len(offsets))) + types + b"ABC\0"


class Data:
    """The time zone data of this process, each version in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._versions = folder, 0

    def set(self, *offsets: tuple[int, int]) -> None:
        """The zone has these offsets from now on; the first one always applied."""
        self._versions += 1
        file = self._folder / str(self._versions) / ZONE
        file.parent.mkdir(parents=True)
        file.write_bytes(data(offsets))
        self.read(str(file.parents[1]))

    @staticmethod
    def read(*folders: str) -> None:
        """As a process that begins reads it."""
        zoneinfo.reset_tzpath(folders)
        zoneinfo.ZoneInfo.clear_cache()
        for cache in CACHES:
            cache.cache_clear()


@pytest.fixture
def zone(tmp_path: Path) -> Iterator[Data]:
    before = zoneinfo.TZPATH
    yield Data(tmp_path / "zones")
    Data.read(*before)


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


BEFORE = (0, 6)
CHANGE = ms("2026-11-25T00:00:00")
DECEMBER = ms("2026-11-30T18:00:00")  # by clocks that are six hours ahead


def begin(town: Town, zone: Data, team_a: str = "gpuHours: 100\nperiod: month\ncarryOver: 0.5") -> None:
    """One pod runs on one card for two hours."""
    zone.set(BEFORE)
    entries = budgets(_settings=f"timeZone: {ZONE}", team_a=team_a)
    town.begin(("nodes", node()), ("leases", lease(T0)), ("configmaps", entries))
    town.change("pods", gpu_pod(started_ms=T0))
    town.advance(2 * HOUR)
    town.change("pods", gpu_pod(started_ms=T0, ended_ms=T0 + 2 * HOUR))


def give(town: Town, hours: str, key: str) -> None:
    body = {"subject": "team-a", "gpuHours": hours, "reason": "a deadline"}
    assert town.post("/v1/grants", body, **{"Idempotency-Key": key}).status_code == 200


def stands(town: Town, at_ms: int) -> Json:
    """The account at that time, which has come."""
    town.clock.turn(at_ms - town.clock())
    town.node_heard()
    town.tick()
    town.tick()
    found: Json = town.get("/v1/balances/team-a").get_json()
    return found


def bounds(found: Json) -> tuple[int, int]:
    return found["from"], found["to"]


def restart(town: Town) -> None:
    """Settler and API begin anew, with the data that there is now."""
    town.resume()
    town.serve()


def faults(town: Town) -> list[Finding]:
    found: list[Finding] = []
    with town.store.reading() as connection:
        audit(connection, town.clock(), found.append)
    return found


@pytest.mark.parametrize("hours", [5, 7])
def test_a_running_period_keeps_its_grants_and_its_end_and_the_next_begins_there(
    town: Town, zone: Data, hours: int
) -> None:
    begin(town, zone)
    give(town, "50", "a")
    before = stands(town, T0 + DAY)
    zone.set(BEFORE, (CHANGE, hours))
    restart(town)

    assert before["granted"] == 150 * GPU_HOUR
    assert stands(town, T0 + DAY) == before
    assert bounds(stands(town, DECEMBER - 1)) == bounds(before)
    after = stands(town, DECEMBER + HOUR // 2)
    assert bounds(after) == (DECEMBER, ms("2027-01-01T00:00:00") - hours * HOUR)
    assert after["granted"] == (100 + 148 // 2) * GPU_HOUR
    restart(town)
    assert stands(town, DECEMBER + HOUR) == after
    assert faults(town) == []


def test_data_that_comes_while_no_timekeeper_runs_moves_no_end_of_the_period_before(
    town: Town, zone: Data
) -> None:
    begin(town, zone)
    zone.set(BEFORE, (CHANGE, 5))
    town.clock.turn(DECEMBER + HOUR // 2 - town.clock())
    restart(town)

    assert bounds(stands(town, DECEMBER + HOUR)) == (DECEMBER, ms("2026-12-31T19:00:00"))
    assert faults(town) == []


@pytest.mark.parametrize("kind", ["week", "day"])
def test_a_changed_entry_and_a_changed_kind_in_such_a_period_do_what_they_always_do(
    town: Town, zone: Data, kind: str
) -> None:
    begin(town, zone)
    zone.set(BEFORE, (CHANGE, 5))
    restart(town)
    town.change("configmaps", budgets(_settings=f"timeZone: {ZONE}", team_a="gpuHours: 200\nperiod: month"))

    assert stands(town, T0 + DAY)["granted"] == 200 * GPU_HOUR
    assert stands(town, DECEMBER + HOUR // 2)["from"] == DECEMBER
    other = budgets(_settings=f"timeZone: {ZONE}", team_a=f"gpuHours: 9\nperiod: {kind}")
    town.change("configmaps", other)
    assert stands(town, DECEMBER + HOUR - 1)["from"] == DECEMBER + HOUR // 2


@pytest.mark.parametrize("seed", range(examples(6, 200)))
def test_no_change_of_the_data_loses_a_grant_or_a_carry_or_leaves_a_gap_between_periods(
    town: Town, zone: Data, seed: int
) -> None:
    """Of a day's or a week's budget over random changes of the data at random times."""
    random = Random(seed)
    kind, length = random.choice([("day", DAY), ("week", 7 * DAY)])
    begin(town, zone, f"gpuHours: 10\nperiod: {kind}\ncarryOver: 0.5")
    offsets = [BEFORE]
    seen, given = [stands(town, town.clock())], 0
    for step in range(24):
        account = stands(town, town.clock() + random.randrange(1, length // 2))
        if bounds(seen[-1]) == bounds(account):
            seen[-1] = account
        else:
            seen.append(account)
            given = 0
        if random.randrange(3) == 0:
            give(town, "1", f"g{step}")
            given += 1
            seen[-1] = stands(town, town.clock())
        if random.randrange(3) == 0:
            coming = town.clock() + random.randrange(-DAY, 2 * length)
            offsets = [offset for offset in offsets if offset[0] < coming]
            offsets.append((coming, random.randrange(-11, 12)))
            zone.set(*offsets)
            restart(town)
            again = stands(town, town.clock())
            assert (bounds(again), again["granted"]) == (bounds(seen[-1]), seen[-1]["granted"])
        spent = [2 * GPU_HOUR, *(0 for _ in seen)]  # in the first period alone
        carried = (seen[-2]["granted"] - spent[len(seen) - 2]) // 2 if len(seen) > 1 else 0
        assert seen[-1]["granted"] == (10 + given) * GPU_HOUR + carried
        assert seen[-1]["posted"] + seen[-1]["pending"] == spent[len(seen) - 1]

    for before, after in pairwise(seen):
        assert before["to"] == after["from"]
        assert after["to"] - after["from"] >= length // 2
    assert faults(town) == []


@pytest.mark.parametrize("seed", range(examples(4, 100)))
def test_without_new_data_no_restart_changes_a_period_whatever_entries_say(town: Town, seed: int) -> None:
    random = Random(seed)
    town.begin(("nodes", node()), ("leases", lease(T0)))
    for _ in range(20):
        zone = random.choice(["UTC", "America/New_York", "Asia/Kathmandu", "Pacific/Apia"])
        kind = random.choice(["day", "week", "month", "hour", "once"])
        entries = budgets(_settings=f"timeZone: {zone}", team_a=f"gpuHours: 5\nperiod: {kind}")
        town.change("configmaps", entries if random.randrange(4) else budgets())
        before = stands(town, town.clock() + random.randrange(2 * DAY))
        restart(town)

        assert stands(town, town.clock()) == before
        assert town.settler.ledger.history.moved == {}
