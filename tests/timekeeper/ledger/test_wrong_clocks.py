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


NOTED = [{"time": iso(T0), "fieldsV1": {"f:status": {"f:phase": {}}}}]  # as a tenant writes it


def clocked(town: Town, ahead: int, name: str = "n1") -> None:
    """The node renews its Lease now, by a clock that is so far ahead, and pods are watched."""
    town.hear("leases", lease(town.clock() + ahead, name, noted_ms=town.clock()))
    town.quiet()
    town.tick()


def runs(town: Town, ahead: int = 0) -> Json:
    """A pod begins, on a node whose Leases say that its clock is so far ahead."""
    begin(town)
    clocked(town, ahead)
    pod = gpu_pod(bound_ms=T0, started_ms=T0 + ahead)
    pod["status"]["startTime"] = iso(T0 + ahead)
    town.change("pods", pod)
    return pod


def ended(pod: Json, *ends: int) -> Json:
    """It has ended; each of its containers then, by the clock of its node."""
    began = pod["status"]["containerStatuses"][0]["state"]["running"]["startedAt"]
    runs = [{"startedAt": began, "finishedAt": iso(end), "exitCode": 0} for end in ends]
    main, *others = [{"name": f"c{at}", "state": {"terminated": run}} for at, run in enumerate(runs)]
    statuses = [main | {"name": "main"}, *others]
    return pod | {"status": pod["status"] | {"phase": "Succeeded", "containerStatuses": statuses}}


def minutes(town: Town) -> float:
    """What was charged, in minutes of its card."""
    return town.charged() / 1000 / MINUTE


def doubt(town: Town) -> str | None:
    (session,) = town.get("/v1/sessions").get_json()["sessions"]
    said: str | None = session["doubt"]
    return said


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("is_deleted", [False, True])
@pytest.mark.parametrize("is_noted", [False, True])
@pytest.mark.parametrize("ahead", [-HOUR, -MINUTE, MINUTE, HOUR])
def test_a_clock_that_is_set_while_a_pod_runs_changes_its_charge_by_12_s_at_most(
    town: Town, ahead: int, is_noted: bool, is_deleted: bool, after: bool
) -> None:
    """``after``: the Lease shows it only after the pod has ended; ``is_noted``: its tenant wrote when it was
    reported."""
    pod = runs(town)
    town.clock.turn(HOUR)
    clocked(town, 0 if after else ahead)
    town.clock.turn(HOUR)
    if not after:
        clocked(town, ahead)
    end = ended(pod, town.clock() + ahead)
    town.clock.turn(2 * SECOND)
    end["metadata"] = end["metadata"] | ({"managedFields": NOTED} if is_noted else {})
    town.change("pods", end)
    if is_deleted:
        town.change("pods", end, deleted=True)
    town.clock.turn(8 * SECOND)
    clocked(town, ahead)
    clocked(town, 0)  # it is mended
    assert abs(minutes(town) - 120) < 0.2
    town.objects["pods"] = {} if is_deleted else town.objects["pods"]
    town.resume()
    town.advance(HOUR)

    assert abs(minutes(town) - 120) < 0.2
    assert doubt(town) is None


@pytest.mark.parametrize(("ahead", "charged"), [(-HOUR, 120), (HOUR, 180)])
def test_without_a_watch_at_the_time_the_longer_reading_counts_with_a_doubt(
    town: Town, ahead: int, charged: int
) -> None:
    pod = runs(town)
    town.advance(HOUR)
    town.hear("pods", ended(pod, T0 + 2 * HOUR + ahead), unheard=True)
    town.hear("leases", lease(T0 + 4 * HOUR + ahead, noted_ms=T0 + 4 * HOUR), unheard=True)
    town.clock.turn(3 * HOUR)
    town.resume()

    assert minutes(town) == charged
    assert str(doubt(town)).startswith("the clock of its node was set while it ran")


def test_of_two_readings_before_a_late_receipt_the_longer_counts_with_a_doubt(town: Town) -> None:
    pod = runs(town)
    clocked(town, -HOUR)
    town.clock.turn(5 * HOUR)
    town.change("pods", ended(pod, T0 + HOUR))

    assert minutes(town) == 120
    assert doubt(town)


@pytest.mark.parametrize("ahead", [-HOUR, HOUR])
@pytest.mark.parametrize("is_watched", [False, True])
def test_a_clock_that_was_wrong_from_the_beginning_leaves_no_doubt(
    town: Town, ahead: int, is_watched: bool
) -> None:
    pod = runs(town, ahead)
    town.clock.turn(2 * HOUR)
    end = ended(pod, T0 + HOUR + ahead)
    town.hear("pods", end, unheard=not is_watched)
    town.tick() if is_watched else town.resume()
    town.resume()

    assert minutes(town) == 60
    assert doubt(town) is None


@pytest.mark.parametrize("is_second", [False, True])
def test_a_container_that_ended_before_the_clock_was_set_back_is_not_the_last(
    town: Town, is_second: bool
) -> None:
    pod = runs(town)
    town.clock.turn(2 * HOUR)
    clocked(town, -HOUR)
    ends = (T0 + 90 * MINUTE, T0 + HOUR) if is_second else (T0 + HOUR, T0 + 90 * MINUTE)
    town.change("pods", ended(pod, *ends))

    assert minutes(town) == 120


def test_a_late_report_of_a_node_whose_clock_is_right_counts_by_the_kubelet_s_word(town: Town) -> None:
    pod = runs(town)
    town.clock.turn(3 * HOUR)
    clocked(town, 0)
    town.change("pods", ended(pod, T0 + HOUR))
    clocked(town, 0)

    assert minutes(town) == 60


@pytest.mark.parametrize("ahead", [-HOUR, HOUR])
def test_pods_that_run_on_such_a_node_are_charged_by_when_it_was_heard(town: Town, ahead: int) -> None:
    runs(town)
    town.clock.turn(HOUR)
    clocked(town, ahead)
    assert minutes(town) == 60

    town.clock.turn(2 * HOUR)  # it is silent
    town.quiet()
    town.tick()
    assert minutes(town) == 60


def test_an_end_without_a_time_on_a_node_that_is_ahead_is_one_of_its_receipt(town: Town) -> None:
    pod = runs(town, HOUR)
    town.clock.turn(MINUTE)
    town.change("pods", pod | {"status": {"phase": "Failed", "conditions": pod["status"]["conditions"]}})
    town.clock.turn(HOUR)
    town.tick()

    assert minutes(town) == 1


def test_an_end_after_its_receipt_on_a_node_without_a_lease_is_one_of_the_receipt(town: Town) -> None:
    raw = node() | {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    town.begin(("nodes", raw), ("configmaps", budgets(team_a=HOURLY)))
    pod = gpu_pod(bound_ms=T0, started_ms=T0)
    town.change("pods", pod)
    town.clock.turn(2 * HOUR)
    town.change("pods", ended(pod, T0 + 3 * HOUR))

    assert minutes(town) == 120


def test_another_writer_of_a_lease_does_not_make_its_node_s_clock_wrong(town: Town) -> None:
    begin(town)
    renewed = {"fieldsV1": {"f:spec": {"f:renewTime": {}}}, "time": iso(T0)}
    other = {"fieldsV1": {"f:metadata": {"f:annotations": {}}}, "time": iso(T0 + HOUR)}
    raw = lease(T0)
    raw["metadata"]["managedFields"] = [renewed, other]
    town.change("leases", raw)

    assert town.settler.cluster.nodes.wrong_clocks() == {}


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
