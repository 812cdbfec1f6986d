"""Carry-over: the share of what is left at a period's end that moves on to the next."""

import pytest
from sqlalchemy import insert, select

from tests.timekeeper.databases import ON_BOTH
from tests.timekeeper.worlds import DAY, GPU, HOUR, MINUTE, SECOND, T0, Town, budgets, gpu_pod, lease, node
from timekeeper.core.budgets.policy import GPU_HOUR
from timekeeper.operations.audit.audit import audit
from timekeeper.operations.audit.finding import Finding
from timekeeper.store.engine.schema import GRANTS
from timekeeper.store.engine.upgrade import snapshot

MIDNIGHT = T0 + 14 * HOUR  # the 21st of November
DAILY = "gpuHours: 10\nperiod: day\ncarryOver: 0.5"
NO_LOOKAHEAD = "lookahead: 0s"


@pytest.fixture
def home(town: Town) -> Town:
    """team-a has ten GPU-hours a day, of which half of what is left moves on."""
    town.begin(
        ("nodes", node(cards=8)),
        ("leases", lease(T0)),
        ("configmaps", budgets(team_a=DAILY, _settings=NO_LOOKAHEAD)),
    )
    return town


def say(town: Town, **entries: str) -> None:
    """The ConfigMap now holds these entries."""
    town.clock.turn(SECOND)
    town.change("configmaps", budgets(**entries, _settings=NO_LOOKAHEAD))


def ran(town: Town, start_ms: int, hours: float, name: str = "p", namespace: str = "team-a") -> None:
    """A pod ran for so long on one card, and ended."""
    end_ms = start_ms + int(hours * HOUR)
    town.change(
        "pods", gpu_pod(name, namespace=namespace, bound_ms=start_ms, started_ms=start_ms, ended_ms=end_ms)
    )


def at(town: Town, at_ms: int) -> None:
    town.clock.at_ms = at_ms
    town.tick()


def carried(town: Town, subject: str = "team-a") -> float:
    return int(town.budget(subject)["carried"]) / GPU_HOUR


def rows(town: Town, subject: str = "team-a") -> list[tuple[str, float, int]]:
    """(kind, GPU-hours, how many days after the 20th its account begins) of every grant, in order."""
    found = town.get(f"/v1/grants?subject={subject}").get_json()["grants"]
    first = MIDNIGHT - DAY
    return [(each["kind"], each["amount"] / GPU_HOUR, (each["from"] - first) // DAY) for each in found]


def test_half_of_what_is_left_moves_on(home: Town) -> None:
    ran(home, T0, 4)
    at(home, MIDNIGHT)

    budget = home.budget()
    assert (budget["granted"], budget["carried"]) == (13 * GPU_HOUR, 3 * GPU_HOUR)
    assert budget["posted"] == 0
    assert budget["carryOverMilli"] == 500
    assert rows(home) == [("period", 10, 0), ("period", 10, 1), ("carry", 3, 1)]


def test_without_carry_over_nothing_moves(home: Town) -> None:
    say(home, team_a="gpuHours: 10\nperiod: day")
    at(home, MIDNIGHT)

    assert carried(home) == 0


def test_a_share_is_rounded_down_to_the_smallest_amount(home: Town) -> None:
    say(home, team_a="gpuHours: 0.00000007\nperiod: day\ncarryOver: 0.333")
    at(home, MIDNIGHT)

    assert home.budget()["carried"] == 252 * 333 // 1000 == 83


def test_a_debt_moves_nowhere(home: Town) -> None:
    ran(home, T0 - 8 * HOUR, 12)
    at(home, MIDNIGHT)

    assert home.budget()["granted"] == 10 * GPU_HOUR


def test_what_was_carried_is_carried_again_by_its_share(home: Town) -> None:
    ran(home, T0, 4)
    for days, expected in ((1, 3), (2, 6.5), (3, 8.25)):
        at(home, MIDNIGHT + (days - 1) * DAY)
        assert carried(home) == expected


def test_unused_periods_are_carried_one_by_one(home: Town) -> None:
    """The timekeeper was away for three days and more."""
    ran(home, T0, 4)
    home.clock.at_ms = MIDNIGHT + 2 * DAY + HOUR
    home.resume()

    assert carried(home) == 8.25
    assert rows(home) == [
        ("period", 10, 0),
        ("period", 10, 1),
        ("carry", 3, 1),
        ("period", 10, 2),
        ("carry", 6.5, 2),
        ("period", 10, 3),
        ("carry", 8.25, 3),
    ]


def test_what_ran_while_the_timekeeper_was_away_is_counted_in_its_own_period(home: Town) -> None:
    home.change("pods", gpu_pod(started_ms=T0))
    home.clock.at_ms = MIDNIGHT + 2 * DAY + HOUR
    home.hear("pods", gpu_pod(started_ms=T0, ended_ms=MIDNIGHT + 6 * HOUR), unheard=True)
    home.resume()

    first = 0  # the day is overspent: 14 of 10 hours
    second = (10 + first - 6) / 2
    assert carried(home) == (10 + second) / 2


def test_a_second_look_changes_nothing(home: Town) -> None:
    ran(home, T0, 4)
    at(home, MIDNIGHT)
    before = rows(home)
    for _ in range(3):
        at(home, home.clock() + 2 * MINUTE)
    home.resume()

    assert rows(home) == before


def test_late_evidence_of_the_old_period_corrects_what_was_carried(home: Town) -> None:
    """The node is heard up to an hour before midnight, and that it ran to the end only later."""
    home.hear("pods", gpu_pod(started_ms=MIDNIGHT - 3 * HOUR, bound_ms=MIDNIGHT - 3 * HOUR))
    home.clock.at_ms = MIDNIGHT - HOUR
    home.advance()
    at(home, MIDNIGHT)
    assert carried(home) == 4

    home.clock.at_ms = MIDNIGHT + HOUR
    home.advance()

    assert carried(home) == 3.5
    assert rows(home)[-2:] == [("carry", 4, 1), ("carry", -0.5, 1)]


def test_proof_that_a_session_ended_earlier_gives_back(home: Town) -> None:
    home.hear("pods", gpu_pod(started_ms=T0))
    home.clock.at_ms = MIDNIGHT + HOUR
    home.advance()
    assert carried(home) == 0

    at(home, home.clock() + MINUTE)
    home.change("pods", gpu_pod(started_ms=T0, ended_ms=T0 + 2 * HOUR))

    assert carried(home) == 4


def test_evidence_that_comes_in_over_the_first_seconds_is_corrected_once_a_minute(home: Town) -> None:
    started = MIDNIGHT - HOUR
    home.hear("pods", gpu_pod(started_ms=started, bound_ms=started))
    for second in range(-20, 70):
        home.clock.at_ms = MIDNIGHT + second * SECOND
        home.hear("leases", lease(min(MIDNIGHT + 20 * SECOND, home.clock() - 15 * SECOND)))
        home.quiet()
        home.tick()

    assert carried(home) == 4.5
    assert [kind for kind, _, day in rows(home) if day == 1] == ["period", "carry", "carry"]


def test_what_is_still_to_be_corrected_is_not_forgotten_by_a_restart(home: Town) -> None:
    started = MIDNIGHT - HOUR
    home.hear("pods", gpu_pod(started_ms=started, bound_ms=started))
    for second in (-20, 0, 10):
        home.clock.at_ms = MIDNIGHT + second * SECOND
        home.hear("leases", lease(home.clock() - 5 * SECOND))
        home.quiet()
        home.tick()
    home.restart()
    at(home, MIDNIGHT + 30 * SECOND)
    assert carried(home) > 4.5

    at(home, MIDNIGHT + 61 * SECOND)

    assert carried(home) == 4.5


def test_a_correction_passes_through_all_later_periods(home: Town) -> None:
    """A node is silent for days, and then says that the pod ran on the whole time."""
    started = MIDNIGHT - 2 * HOUR
    home.clock.at_ms = started
    home.hear("pods", gpu_pod(started_ms=started, bound_ms=started, percent=10))
    home.clock.at_ms = MIDNIGHT - HOUR
    home.advance()
    for day in range(3):
        at(home, MIDNIGHT + day * DAY + HOUR)
    assert carried(home) == ((9.9 / 2 + 10) / 2 + 10) / 2

    home.clock.at_ms = MIDNIGHT + 2 * DAY + 2 * HOUR
    home.advance()

    first = (10 - 0.2) / 2
    second = (10 + first - 2.4) / 2
    assert home.budget()["carried"] == int((10 + second - 2.4) / 2 * GPU_HOUR)


def test_the_share_is_the_one_of_the_periods_end(home: Town) -> None:
    say(home, team_a="gpuHours: 10\nperiod: day\ncarryOver: 1")
    at(home, MIDNIGHT)
    say(home, team_a="gpuHours: 10\nperiod: day\ncarryOver: 0")

    assert carried(home) == 10
    at(home, MIDNIGHT + DAY)
    assert carried(home) == 0


def test_a_budget_changed_in_mid_period_is_carried_as_it_was_at_the_end(home: Town) -> None:
    say(home, team_a="gpuHours: 6\nperiod: day\ncarryOver: 0.5")
    at(home, MIDNIGHT)

    assert carried(home) == 3


def test_what_was_granted_by_hand_is_carried_too(home: Town) -> None:
    home.post("/budget/team-a/increase", {"minutes": 240}, **{"Idempotency-Key": "k"})
    at(home, MIDNIGHT)

    assert carried(home) == 7


def test_a_changed_kind_of_period_carries_nothing(home: Town) -> None:
    at(home, MIDNIGHT)
    assert carried(home) == 5
    at(home, MIDNIGHT + HOUR)
    say(home, team_a="gpuHours: 100\nperiod: week\ncarryOver: 0.5")

    assert (home.budget()["granted"], carried(home)) == (100 * GPU_HOUR, 0)
    assert rows(home)[3:] == [("period", 100, 1)]
    at(home, MIDNIGHT + 3 * DAY)
    assert carried(home) == 50


def test_the_first_period_of_a_namespace_carries_nothing_from_before(home: Town) -> None:
    say(home, team_a=DAILY, team_b=DAILY)

    assert carried(home, "team-b") == 0
    assert rows(home, "team-b") == [("period", 10, 0)]


def test_a_budget_taken_away_and_given_back_refills_nothing(home: Town) -> None:
    ran(home, T0 - 8 * HOUR, 9)
    say(home)
    say(home, team_a=DAILY)
    assert home.budget()["remaining"] == GPU_HOUR

    at(home, MIDNIGHT)

    assert carried(home) == 0.5


def test_a_budget_that_is_away_at_the_periods_end_carries_nothing(home: Town) -> None:
    say(home)
    at(home, MIDNIGHT)
    say(home, team_a=DAILY)

    assert (home.budget()["granted"], carried(home)) == (10 * GPU_HOUR, 0)


def test_a_namespace_deleted_and_made_anew_gets_nothing_twice(home: Town) -> None:
    ran(home, T0, 4)
    at(home, MIDNIGHT)
    home.hear("pods", gpu_pod(started_ms=T0, ended_ms=T0 + 4 * HOUR), deleted=True)
    say(home)
    say(home, team_a=DAILY)

    assert home.budget()["granted"] == 13 * GPU_HOUR
    assert [kind for kind, _, day in rows(home) if day == 1] == ["period", "carry"]


def test_a_group_carries_over_what_its_members_left(town: Town) -> None:
    entries = {"team_a": "gpuHours: 100\ngroup: lab", "_group.lab": DAILY, "_settings": NO_LOOKAHEAD}
    town.begin(("nodes", node()), ("leases", lease(T0)), ("configmaps", budgets(**entries)))
    ran(town, T0, 4)
    at(town, MIDNIGHT)

    assert carried(town, "_group.lab") == 3
    assert town.budget()["group"]["granted"] == 13 * GPU_HOUR
    assert rows(town, "_group.lab") == [("period", 10, 0), ("period", 10, 1), ("carry", 3, 1)]


def test_late_evidence_of_a_former_member_corrects_what_the_group_carried(town: Town) -> None:
    entries = {"_group.lab": DAILY, "_settings": NO_LOOKAHEAD}
    town.begin(
        ("nodes", node()),
        ("leases", lease(T0)),
        ("configmaps", budgets(**entries, team_a="gpuHours: 100\ngroup: lab")),
    )
    town.hear("pods", gpu_pod(started_ms=T0))
    town.clock.turn(2 * HOUR)
    town.node_heard()
    town.change("configmaps", budgets(**entries, team_a="gpuHours: 100"))
    at(town, MIDNIGHT)
    assert carried(town, "_group.lab") == 4

    town.clock.turn(HOUR)
    town.change("pods", gpu_pod(started_ms=T0, ended_ms=T0 + HOUR))

    assert carried(town, "_group.lab") == 4.5


@ON_BOTH
def test_a_default_carries_over_for_who_has_used_it(town: Town) -> None:
    """And goes on where such a namespace then uses nothing; who never came has nothing saved up."""
    town.begin(
        ("nodes", node()),
        ("leases", lease(T0)),
        ("configmaps", budgets(_defaults=DAILY, _settings=NO_LOOKAHEAD)),
    )
    ran(town, T0, 4)
    at(town, MIDNIGHT)
    at(town, MIDNIGHT + DAY)

    assert carried(town) == 6.5
    assert carried(town, "never-seen") == 0
    document = town.get("/v1/standings").get_json()
    assert document["namespaces"]["team-a"]["remaining"] == int(16.5 * GPU_HOUR)
    assert document["default"]["remaining"] == 10 * GPU_HOUR


def test_an_answer_is_of_the_last_tick(home: Town) -> None:
    ran(home, T0, 4)
    home.clock.at_ms = MIDNIGHT

    assert home.get("/v1/budgets/team-a").get_json()["granted"] == 10 * GPU_HOUR
    home.tick()
    assert home.get("/v1/budgets/team-a").get_json()["granted"] == 13 * GPU_HOUR


def test_hours_are_carried_over_a_changed_clock(town: Town) -> None:
    """Lord Howe Island: at two the clock goes back by half an hour."""
    at_ms = 1_775_310_600_000  # 2026-04-04T13:50:00Z, there 00:50
    entry = "gpuHours: 1\nperiod: hour\ncarryOver: 1"
    town.clock.at_ms = at_ms
    settings = "timeZone: Australia/Lord_Howe\nlookahead: 0s"
    town.begin(
        ("nodes", node()), ("leases", lease(at_ms)), ("configmaps", budgets(team_a=entry, _settings=settings))
    )
    bounds = []
    for _ in range(30):
        at(town, town.clock() + 5 * MINUTE)
        period = town.budget()["period"]
        if (period["from"], period["to"]) not in bounds:
            bounds.append((period["from"], period["to"]))

    assert [end - start for start, end in bounds] == [HOUR, HOUR, HOUR // 2, HOUR]
    assert town.budget()["granted"] == 4 * GPU_HOUR


def test_a_changed_time_zone_counts_from_the_next_period_on_and_carries_over(home: Town) -> None:
    ran(home, T0, 4)
    at(home, T0 + 5 * HOUR)
    home.change("configmaps", budgets(team_a=DAILY, _settings="timeZone: Europe/Berlin\nlookahead: 0s"))
    assert home.budget()["remaining"] == 6 * GPU_HOUR

    at(home, MIDNIGHT)
    period = home.budget()["period"]
    assert (period["from"], period["to"]) == (MIDNIGHT, MIDNIGHT + 23 * HOUR)
    assert carried(home) == 3


def test_a_pod_that_runs_over_midnight_is_charged_in_both_days(home: Town) -> None:
    started = MIDNIGHT - HOUR
    home.clock.at_ms = MIDNIGHT + HOUR
    ran(home, started, 2)
    home.tick()

    assert (home.budget()["posted"], carried(home)) == (GPU * HOUR, 4.5)


def told(town: Town) -> list[Finding]:
    """What an audit finds."""
    found: list[Finding] = []
    with snapshot(town.store) as connection:
        audit(connection, town.clock(), found.append)
    return found


def test_an_audit_works_out_what_was_carried_over_and_agrees(home: Town) -> None:
    """Also of periods that were missed, and of a group."""
    entries = {"_group.lab": DAILY, "_settings": NO_LOOKAHEAD}
    home.hear("configmaps", budgets(**entries, team_a=DAILY + "\ngroup: lab"))
    ran(home, T0 + SECOND, 4)
    home.clock.at_ms = MIDNIGHT + 2 * DAY + HOUR
    home.resume()
    assert (carried(home), carried(home, "_group.lab")) == (8.25, 8.25)

    at(home, home.clock() + 2 * MINUTE)

    assert told(home) == []


def test_an_audit_names_what_was_carried_over_too_much(home: Town) -> None:
    ran(home, T0, 4)
    at(home, MIDNIGHT)
    at(home, MIDNIGHT + 2 * MINUTE)
    with home.store.writing() as connection:
        row = select(GRANTS).where(GRANTS.c.kind == "carry")
        given = dict(connection.execute(row).one()._mapping) | {"id": 99, "idempotency_key": "x", "amount": 7}
        connection.execute(insert(GRANTS).values(given))

    (finding,) = told(home)

    assert (finding.what, finding.amount) == ("carried over", 7)
    assert finding.subject.startswith("account of team-a for 2026-11-21T00:00:00")
