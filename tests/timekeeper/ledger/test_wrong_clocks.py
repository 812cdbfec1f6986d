"""Statuses by clocks that are wrong, our own turned back, and texts that no database takes: nobody is charged
beyond the truth, and the settler goes on."""

import pytest
from prometheus_client import REGISTRY

from tests.timekeeper.clocks import iso
from tests.timekeeper.worlds import DAY, HOUR, MINUTE, SECOND, T0, Json, Town, budgets, gpu_pod, lease, node

YEAR_9999 = 253_402_300_799_999
HOURLY = "gpuHours: 1000\nperiod: hour"


def begin(town: Town, entry: str = HOURLY) -> None:
    town.begin(("nodes", node()), ("leases", lease(T0)), ("configmaps", budgets(team_a=entry)))


def test_a_start_from_before_the_binding_counts_from_the_binding(town: Town) -> None:
    begin(town)
    town.clock.turn(HOUR)

    town.change("pods", gpu_pod(bound_ms=T0, started_ms=T0 - 20 * 365 * DAY, ended_ms=T0 + MINUTE))

    assert town.postings() == [(T0, T0 + MINUTE, 1000, "settled")]


@pytest.mark.parametrize("ahead", [-MINUTE, 0, MINUTE])
def test_a_run_on_a_node_whose_clock_is_a_minute_wrong_costs_what_it_held(town: Town, ahead: int) -> None:
    """40 s, by whichever clock the kubelet writes."""
    begin(town)
    town.clock.turn(HOUR)
    began, ended, reported = T0 + ahead, T0 + ahead + 40 * SECOND, T0 + 40 * SECOND
    pod = gpu_pod(bound_ms=T0, started_ms=began, ended_ms=ended)
    pod["status"]["startTime"] = iso(began)
    pod["metadata"]["managedFields"] = [{"time": iso(reported), "fieldsV1": {"f:status": {"f:phase": {}}}}]

    town.change("pods", pod)
    town.hear("pods", pod)  # as after a restart
    assert town.tick()

    assert town.postings() == [(T0, T0 + 40 * SECOND, 1000, "settled")]


@pytest.mark.parametrize("ahead", [DAY + HOUR, 800 * DAY, YEAR_9999 - T0 - MINUTE])
def test_an_end_that_lies_far_ahead_is_one_of_now(town: Town, ahead: int) -> None:
    begin(town)
    town.clock.turn(MINUTE)

    for grace_s in (30, 31, 32):  # told again and again, as a status that changes is
        town.change("pods", gpu_pod(started_ms=T0, ended_ms=T0 + MINUTE + ahead, grace_s=grace_s))
        town.clock.turn(SECOND)

    assert town.postings() == [(T0, T0 + MINUTE, 1000, "settled")]


def test_a_clock_turned_back_over_a_period_s_end_finds_its_grants_again(town: Town) -> None:
    begin(town)
    end = T0 - T0 % HOUR + HOUR
    town.clock.at_ms = end - MINUTE
    town.hear("pods", gpu_pod(bound_ms=end - HOUR // 2, started_ms=end - HOUR // 2))
    assert town.tick()
    town.clock.at_ms = end + SECOND
    assert town.tick()
    assert town.tick()  # by now the hour that ended is forgotten

    town.clock.turn(-2 * SECOND)

    assert town.tick()
    assert town.budget()["granted"] == 1000 * 3_600_000_000


@pytest.mark.parametrize("value", ["a\\0", "a\\ud800", "a\\e[31m"])
def test_a_text_that_no_database_takes_is_reported_and_harms_no_other(town: Town, value: str) -> None:
    begin(town)

    town.hear("configmaps", budgets(team_a=HOURLY, team_b=f'gpuHours: 1\nperiod: "{value}"'))

    assert town.tick()
    assert "\N{REPLACEMENT CHARACTER}" in town.budget("team-b")["lastError"]
    assert town.budget()["standing"] == "IN_BUDGET"


@pytest.mark.parametrize("duration", ["3650d1ms", "999999999d" * 150])
def test_a_duration_of_more_than_ten_years_is_not_taken(town: Town, duration: str) -> None:
    begin(town)

    town.hear("configmaps", budgets(team_a=HOURLY, _settings=f"settleAfter: {duration}"))
    town.hear("pods", gpu_pod())

    assert town.tick()
    assert any("settleAfter" in notice.message for notice in town.notices)


def test_nodes_with_cards_whose_clocks_are_wrong_are_a_metric_and_logged_once(
    town: Town, capfd: pytest.CaptureFixture[str]
) -> None:
    town.begin(
        ("nodes", node()), ("nodes", node("n2")), ("nodes", node("no-card", cards=0)), ("leases", lease(T0))
    )
    wrong = {"n1": 6 * SECOND, "n2": -90 * SECOND, "no-card": HOUR}

    def after(*leases: Json, deleted: bool = False) -> tuple[float | None, list[str]]:
        capfd.readouterr()
        for each in leases:
            town.hear("leases", each, deleted=deleted)
        town.tick()
        logged = [line for line in capfd.readouterr().err.splitlines() if "node-clock-differs" in line]
        return REGISTRY.get_sample_value("bursar_node_clock_offset_seconds"), logged

    offset, logged = after(*(lease(T0 + ahead, name, noted_ms=T0) for name, ahead in wrong.items()))
    assert offset == -90
    assert sorted(
        (" node=n1 " in each, "seconds=6.0" in each, "seconds=-90.0" in each) for each in logged
    ) == [
        (False, False, True),
        (True, True, False),
    ]
    assert after(lease(T0 + 95 * SECOND, "n2", noted_ms=T0)) == (95, [])
    assert after(lease(T0 + 5 * SECOND, "n2", noted_ms=T0)) == (6, [])
    assert after(lease(T0 + MINUTE, "n1", noted_ms=T0), deleted=True) == (0, [])
    offset, logged = after(lease(T0 - MINUTE, "n1", noted_ms=T0))
    assert (offset, len(logged)) == (-60, 1)
    town.hear("leases", lease(T0 - MINUTE, "n1"), deleted=True, unheard=True)
    town.hear_all("leases")
    assert after() == (0, [])
