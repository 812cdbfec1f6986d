"""The rows of accounts: written by the settler, in the tick of an event or ten seconds later, and the only
answer to what is left."""

from sqlalchemy import select, update

from tests.timekeeper.worlds import GPU, HOUR, MINUTE, SECOND, T0, Town, budgets, gpu_pod, lease, node
from timekeeper.accounts.account_rows import AccountRow, row_of
from timekeeper.accounts.budget_history import DEFAULTS
from timekeeper.store import accounts
from timekeeper.store.engine.schema import ACCOUNTS, PULSE

BOTH_DATABASES = "a row takes the place of another by each one's own words"
KUBECTL = "application/json;as=Table;v=v1;g=meta.k8s.io"
TEAMS = ("team-a", "team-b")


def begun(town: Town) -> None:
    """Two namespaces of a group with 15 GPU-hours, and one by itself; a pod runs in team-a."""
    grouped = "gpuHours: 10\ngroup: ab"
    town.begin(
        ("nodes", node("n1", cards=4)),
        ("leases", lease(T0)),
        (
            "configmaps",
            budgets(team_a=grouped, team_b=grouped, team_c="gpuHours: 10", **{"_group.ab": "gpuHours: 15"}),
        ),
        ("pods", gpu_pod("p", namespace="team-a", started_ms=T0)),
    )


def rows(town: Town) -> dict[str, AccountRow]:
    with town.store.reading() as connection:
        found = connection.execute(select(ACCOUNTS)).mappings()
        return {row["subject"]: AccountRow(**row) for row in found}


def pending(town: Town, name: str = "team-a") -> int:
    found = town.get(f"/v1/budgets/{name}").get_json()["pending"]
    assert isinstance(found, int)
    return found


def test_the_first_tick_writes_every_account_in_the_settlers_term(town: Town) -> None:
    begun(town)

    found = rows(town)

    assert found.keys() == {"team-a", "team-b", "team-c", "_group.ab", DEFAULTS}
    assert {row.term for row in found.values()} == {town.settler.epoch.number}
    town.restart()
    assert {row.term for row in rows(town).values()} == {town.settler.epoch.number - 1}
    assert town.get("/v1/budgets/team-a").status_code == 200, "a rolling update refuses nobody"
    town.resume()
    assert {row.term for row in rows(town).values()} == {town.settler.epoch.number}


def test_an_event_is_written_in_its_tick_and_time_alone_within_ten_seconds(town: Town) -> None:
    begun(town)
    town.advance(MINUTE)
    seen = []
    for _ in range(11):
        town.advance(SECOND)
        seen.append(pending(town))

    assert len(set(seen)) == 2, "time alone is written once in ten seconds"
    assert seen[-1] - seen[0] in {number * SECOND * GPU for number in range(1, 11)}

    town.change("pods", gpu_pod("q", namespace="team-a", started_ms=town.clock()))
    assert pending(town) == (town.clock() - T0) * GPU
    assert pending(town, "_group.ab") == pending(town)
    town.advance(SECOND)
    town.change("pods", gpu_pod("p", namespace="team-a", started_ms=T0, ended_ms=town.clock()))
    answer = town.get("/v1/budgets/team-a").get_json()
    assert answer["posted"] + answer["pending"] == (town.clock() - T0) * GPU + SECOND * GPU


def test_a_group_and_its_members_are_of_one_tick(town: Town) -> None:
    begun(town)
    town.change("pods", gpu_pod("q", namespace="team-b", started_ms=T0))
    for _ in range(25):
        town.advance(SECOND)
        found = rows(town)
        of_members = [found[name].posted + found[name].pending for name in TEAMS]
        assert found["_group.ab"].posted + found["_group.ab"].pending == sum(of_members)


def test_rows_are_the_settlers_statements_after_a_settler_was_killed_between_two_kinds_of_writing(
    town: Town,
) -> None:
    """An event of team-a is written, what time alone changed in team-c is not: then a settler takes over."""
    begun(town)
    town.change("pods", gpu_pod("r", namespace="team-c", started_ms=T0))
    while not town.settler.ledger.accounts_left:
        town.advance(SECOND)
    town.change("pods", gpu_pod("q", namespace="team-a", started_ms=town.clock()))
    assert "team-c" in town.settler.ledger.accounts_left

    town.resume()

    cache = town.settler.ledger.statement_cache
    assert cache is not None
    made = {**cache.statements.namespaces, **cache.statements.groups, DEFAULTS: cache.statements.default}
    now_ms, term = town.settler.ledger.pulse.decided_ms, town.settler.epoch.number
    assert rows(town) == {name: row_of(name, each, now_ms, term) for name, each in made.items()}
    assert town.settler.ledger.accounts_left == frozenset()


def test_a_namespace_without_an_account_has_that_of_the_defaults(town: Town) -> None:
    entries = budgets(_defaults="gpuHours: 3\nperiod: day")
    town.begin(("nodes", node()), ("leases", lease(T0)), ("configmaps", entries))

    answer = town.get("/v1/budgets/nobody").get_json()

    assert (answer["standing"], answer["granted"]) == ("IN_BUDGET", 3 * HOUR * GPU)
    assert "nobody" not in rows(town)


def test_what_an_unlimited_namespace_without_an_entry_used_is_known(town: Town) -> None:
    town.begin(("nodes", node()), ("leases", lease(T0)), ("pods", gpu_pod(namespace="team-x", started_ms=T0)))
    town.change("pods", gpu_pod(namespace="team-x", started_ms=T0, ended_ms=T0 + SECOND))

    answer = town.get("/v1/budgets/team-x").get_json()

    assert (answer["standing"], answer["posted"]) == ("UNLIMITED", SECOND * GPU)
    assert "team-x" not in town.get("/v1/standings").get_json()["namespaces"]


def test_rows_of_another_release_are_not_answered_until_they_are_written_anew(town: Town) -> None:
    begun(town)
    for table, values in ((PULSE, {"decided_ms": PULSE.c.decided_ms + 1}), (ACCOUNTS, {"format": 0})):
        with town.store.writing() as connection:  # a settler that knows no accounts; one of another format
            connection.execute(update(table).values(values))

        for path in ("/v1/budgets/team-a", "/v1/budgets", "/v1/balances", "/v1/metrics", "/v1/forecast"):
            answer = town.get(path)
            assert (answer.status_code, answer.headers["Retry-After"]) == (503, "2"), path
            assert answer.get_json()["detail"] == "the settler has not written the accounts yet: ask again"
        town.resume()
        assert town.get("/v1/budgets/team-a").status_code == 200


def test_an_answer_says_that_its_tick_is_long_ago(town: Town) -> None:
    begun(town)
    decided_ms = town.settler.ledger.pulse.decided_ms
    paths = ("/v1/budgets", "/v1/budgets/team-a", "/v1/balances", "/v1/balances/team-a")
    assert [town.get(path).get_json()["silentSince"] for path in paths] == [None] * 4

    town.clock.turn(10 * SECOND + 1)

    assert [town.get(path).get_json()["silentSince"] for path in paths] == [decided_ms] * 4
    notes = town.get("/v1/budgets", Accept=KUBECTL).get_json()["notes"]
    assert notes[0].endswith(": the settler has decided nothing since.")


def test_more_accounts_are_read_than_a_statement_has_parameters(town: Town) -> None:
    begun(town)
    names = [f"n{number}" for number in range(70_000)]

    with town.store.reading() as connection:
        found = accounts.rows(connection, [*names, "team-a"])

    assert found["team-a"] == rows(town)["team-a"]
    assert DEFAULTS in found
