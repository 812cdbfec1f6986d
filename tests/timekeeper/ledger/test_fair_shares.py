"""What accounts have used of late, and the order that follows, through the settler, SQL and REST."""

import math
import random
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from flask import g
from sqlalchemy import select

from tests.timekeeper.ledger.test_decisions import post as post_decision
from tests.timekeeper.ledger.test_decisions import posted as posted_decision
from tests.timekeeper.worlds import (
    DAY,
    GPU,
    HOUR,
    MINUTE,
    SECOND,
    T0,
    Json,
    Town,
    budgets,
    gpu_pod,
    lease,
    node,
)
from timekeeper.__main__ import main
from timekeeper.accounts.held.order import FairOrder, HeldPod, next_released, queues_of
from timekeeper.dashboard.app import create_dashboard
from timekeeper.operations.audit.audit import audit
from timekeeper.operations.audit.finding import Finding
from timekeeper.store import postings
from timekeeper.store.engine.schema import ACCOUNTS, DAYS, GRANTS, POSTINGS, SESSIONS

BOTH_DATABASES = "what is left of postings is a number with fractions, which each database stores"

ON = "fairShare: on"


def shares(town: Town, **entries: str) -> None:
    town.begin(
        ("nodes", node("n1", cards=8)),
        ("leases", lease(T0)),
        ("configmaps", budgets(_settings=ON, **entries)),
    )


def rows(town: Town) -> dict[str, Any]:
    with town.store.reading() as connection:
        return {row.subject: row for row in connection.execute(select(ACCOUNTS))}


def ranks(town: Town) -> dict[str, int]:
    document = town.get("/v1/standings").get_json()
    found = {name: entry["rank"] for name, entry in document["namespaces"].items()}
    return {**found, "": document["default"]["rank"]}


def integrated(charges: list[tuple[int, int, int]], at_ms: int, half_life_ms: int) -> float:
    """The use that is left, by Simpson's rule on each charge's interval."""
    total = 0.0
    for from_ms, to_ms, rate in charges:
        steps = 2_000
        width = (min(to_ms, at_ms) - from_ms) / steps

        def left(step: int, from_ms: int = from_ms, width: float = width) -> float:
            return 2 ** (-(at_ms - from_ms - step * width) / half_life_ms)

        inner = sum((4 if step % 2 else 2) * left(step) for step in range(1, steps))
        total += rate * width / 3 * (left(0) + inner + left(steps))
    return total


def posted(town: Town, namespace: str) -> list[tuple[int, int, int]]:
    with town.store.reading() as connection:
        found = connection.execute(select(POSTINGS).where(POSTINGS.c.namespace == namespace))
        return [(row.from_ms, row.to_ms, row.rate_milli) for row in found]


def run(town: Town, name: str, namespace: str, length_ms: int) -> None:
    """A pod runs for so long, and its end is seen."""
    began = town.clock() // SECOND * SECOND
    town.change("pods", gpu_pod(name, namespace=namespace, started_ms=began))
    town.advance(length_ms)
    ended = town.clock() // SECOND * SECOND
    town.change("pods", gpu_pod(name, namespace=namespace, started_ms=began, ended_ms=ended))


def test_off_as_installed_nothing_is_written_and_no_rank_published(town: Town) -> None:
    town.begin(
        ("nodes", node("n1", cards=8)),
        ("leases", lease(T0)),
        ("configmaps", budgets(team_a="gpuHours: 10", team_b="gpuHours: 10")),
    )
    run(town, "p", "team-a", HOUR)

    assert {(row.decayed, row.decayed_ms, row.half_life_ms, row.fair) for row in rows(town).values()} == {
        (None, None, None, None)
    }
    document = town.get("/v1/standings").get_json()
    assert not any("rank" in entry for entry in (document["default"], *document["namespaces"].values()))


def test_posted_use_is_the_integral_of_what_decays_on_each_account(town: Town) -> None:
    shares(
        town,
        team_a="gpuHours: 100\nfairShare: {halfLife: 6h}\ngroup: ab",
        team_b="gpuHours: 100",
        **{"_group.ab": "gpuHours: unlimited\nfairShare: {halfLife: 1d}"},
    )
    for number in range(4):
        run(town, f"a{number}", "team-a", HOUR)
        run(town, f"b{number}", "team-b", 30 * MINUTE)
        run(town, f"c{number}", "nobody", 10 * MINUTE)

    found = rows(town)
    for account, namespace, half_life in (
        ("team-a", "team-a", 6 * HOUR),
        ("_group.ab", "team-a", DAY),
        ("team-b", "team-b", 14 * DAY),
        ("_defaults", "nobody", 14 * DAY),
    ):
        row = found[account]
        right = integrated(posted(town, namespace), row.decayed_ms, half_life)
        assert math.isclose(row.decayed, right, rel_tol=1e-9), account
        assert row.half_life_ms == half_life


def test_who_has_used_least_of_its_share_goes_first_and_open_sessions_count(town: Town) -> None:
    shares(
        town, team_a="gpuHours: 100", team_b="gpuHours: 100\nfairShare: {weight: 4}", team_c="gpuHours: 100"
    )
    assert ranks(town) == {"team-a": 1, "team-b": 1, "team-c": 1, "": 1}, "who has used nothing ties"

    town.change("pods", gpu_pod("a", namespace="team-a", started_ms=T0))
    town.change("pods", gpu_pod("b", namespace="team-b", started_ms=T0))
    town.advance(2 * HOUR)

    assert ranks(town) == {"team-c": 1, "": 1, "team-b": 3, "team-a": 4}


def test_ranks_change_on_a_grid_and_are_the_same_after_a_restart(town: Town) -> None:
    town.clock.turn(-(town.clock() % (10 * MINUTE)) + MINUTE)
    shares(town, team_a="gpuHours: 100", team_b="gpuHours: 100")
    town.change("pods", gpu_pod("a", namespace="team-a", started_ms=town.clock()))
    seen = [ranks(town)["team-a"]]
    for _ in range(8):
        town.advance(MINUTE)
        seen.append(ranks(town)["team-a"])
    assert seen == [1] * 9
    town.advance(MINUTE)
    assert ranks(town) == {"team-b": 1, "": 1, "team-a": 3}

    town.change("pods", gpu_pod("b", namespace="team-b", started_ms=town.clock()))
    before, kept = ranks(town), {name: (row.decayed, row.fair) for name, row in rows(town).items()}
    town.resume()
    town.advance(SECOND)

    assert ranks(town) == before
    assert {name: (row.decayed, row.fair) for name, row in rows(town).items()} == kept


def test_a_namespace_without_entry_shares_one_leaf_with_all_others(town: Town) -> None:
    """Whoever may create namespaces would go first for ever."""
    shares(town, team_a="gpuHours: 100")
    run(town, "a", "team-a", HOUR)
    for number in range(3):
        run(town, f"n{number}", f"new-{number}", HOUR)
    town.advance(10 * MINUTE)

    assert ranks(town) == {"team-a": 1, "": 2}


def test_what_is_made_anew_from_postings_is_what_was_carried(town: Town) -> None:
    entry, life = "gpuHours: 100\ngroup: g", 14 * DAY
    shares(town, team_a=entry, team_b=entry, **{"_group.g": "gpuHours: unlimited"})
    chosen = random.Random(7)
    for number in range(12):
        run(town, f"p{number}", chosen.choice(("team-a", "team-b", "nobody")), chosen.randrange(MINUTE, DAY))
    carried = rows(town)
    with town.store.writing() as connection:
        connection.execute(ACCOUNTS.update().values(format=0))  # of another release

    town.resume()

    found = rows(town)
    assert found["nobody"].decayed is None, "what it used is in the sum of all without an entry"
    for name in ("team-a", "team-b", "_group.g", "_defaults"):
        row = found[name]
        there = carried[name].decayed * 2 ** (-(row.decayed_ms - carried[name].decayed_ms) / life)
        assert math.isclose(row.decayed, there, rel_tol=1e-9), name


def test_a_ledger_that_was_imported_has_the_same_order(town: Town, tmp_path: Path) -> None:
    shares(town, team_a="gpuHours: 100\nfairShare: {weight: 2}", team_b="gpuHours: 100")
    for name, namespace, length_ms in (
        ("a", "team-a", 5 * HOUR),
        ("b", "team-b", 3 * HOUR),
        ("c", "other", 2 * HOUR),
    ):
        run(town, name, namespace, length_ms)
    town.advance(DAY)
    carried, before = rows(town), ranks(town)
    file, target = tmp_path / "ledger.jsonl", f"sqlite:///{tmp_path}/new.db"

    assert main(["export", str(file), "--database", town.url]) == 0
    assert main(["import", str(file), "--database", target]) == 0

    new = Town(target, town.clock)
    shares(new, team_a="gpuHours: 100\nfairShare: {weight: 2}", team_b="gpuHours: 100")
    assert ranks(new) == before
    assert before["team-a"] < before["team-b"]
    for name in ("team-a", "team-b", "_defaults"):
        row, was = rows(new)[name], carried[name]
        there = was.decayed * 2 ** (-(row.decayed_ms - was.decayed_ms) / (14 * DAY))
        assert row.decayed
        assert math.isclose(row.decayed, there, rel_tol=1e-9), name
    new.close()


def test_another_half_life_is_reckoned_from_the_ledger_and_not_from_the_sum(town: Town) -> None:
    shares(town, team_a="gpuHours: 100")
    run(town, "p", "team-a", 5 * HOUR)
    town.change("configmaps", budgets(_settings=ON, team_a="gpuHours: 100\nfairShare: {halfLife: 1h}"))

    row = rows(town)["team-a"]

    right = integrated(posted(town, "team-a"), row.decayed_ms, HOUR)
    assert math.isclose(row.decayed, right, rel_tol=1e-9)


@pytest.mark.parametrize("entries", [{"team_a": "gpuHours: 5"}, {"team_a": "gpuHours: 5", "_settings": ON}])
def test_no_budget_moves_by_a_unit(town: Town, entries: dict[str, str]) -> None:
    town.begin(("nodes", node("n1", cards=8)), ("leases", lease(T0)), ("configmaps", budgets(**entries)))
    run(town, "p", "team-a", 90 * MINUTE)
    town.change("pods", gpu_pod("q", namespace="team-a", started_ms=town.clock()))
    town.advance(7 * MINUTE)

    answer: Json = town.get("/v1/budgets/team-a").get_json()

    assert answer["posted"] == 90 * MINUTE * GPU
    assert answer["posted"] + answer["pending"] <= 97 * MINUTE * GPU


def test_people_see_share_decayed_use_and_rank_and_why_a_pod_waits(town: Town) -> None:
    shares(town, team_a="gpuHours: 100\nfairShare: {weight: 3}", team_b="gpuHours: 100")
    run(town, "p", "team-a", 10 * HOUR)
    town.advance(10 * MINUTE)

    answer: Json = town.get("/v1/budgets/team-a").get_json()["fairShare"]
    assert {name: value for name, value in answer.items() if name not in ("decayed", "gpuHours")} == {
        "weightMilli": 3_000,
        "halfLifeMs": 14 * DAY,
        "shareMilli": 600,
        "usedMilli": 1000,
        "rank": 3,
        "of": 3,
    }
    right = integrated(posted(town, "team-a"), town.clock(), 14 * DAY)
    assert math.isclose(answer["decayed"], right, rel_tol=1e-6)
    table = town.get("/v1/budgets/team-a", Accept="application/json;as=Table;v=v1;g=meta.k8s.io").get_json()
    assert "Third of three to go: team-a used 1.7 times its share, by a half-life of 14 days." in str(table)
    lines = town.get("/v1/metrics").text.splitlines()
    assert 'bursar_account_fair_rank{namespace="team-a"} 3.0' in lines
    assert any(line.startswith('bursar_account_decayed_gpu_seconds{namespace="team-a"} 35') for line in lines)
    assert town.get("/v1/budgets/stranger").get_json()["fairShare"]["rank"] == 1


def held(uid: str, namespace: str, created_ms: int, priority: int = 0) -> HeldPod:
    return HeldPod(
        uid=uid,
        namespace=namespace,
        name=uid,
        priority=priority,
        created_ms=created_ms,
        rate_milli=1000,
        needs_budget=True,
    )


def test_held_pods_go_by_use_and_each_release_adds_what_it_reserves() -> None:
    """Without that, the first namespace would have all of a step."""
    lookahead = 10 * MINUTE
    pods = [held(f"{name}{at}", name, at) for name in ("heavy", "light", "new") for at in range(3)]
    order = FairOrder(
        {"heavy": ("heavy",), "light": ("g", "light"), "new": ("g", "new")},
        {"heavy": 1000, "g": 1000, "light": 1000, "new": 1000},
        {
            "heavy": 5.0 * GPU * lookahead,
            "g": 3.5 * GPU * lookahead,
            "light": 3.5 * GPU * lookahead,
            "new": 0.0,
        },
        lookahead,
    )

    chosen = next_released(queues_of(pods), (), lambda pod: (), {}, 9, fair=order)

    assert [pod.uid for pod in chosen] == [
        *("new0", "new1", "heavy0", "new2", "heavy1", "light0", "heavy2", "light1", "light2"),
    ]
    sent = next_released(queues_of(pods), pods[:2], lambda pod: (), {}, 9, fair=order)
    assert [pod.uid for pod in sent][:3] == ["new0", "new1", "new2"], "what was sent counts, too"
    assert order.uses["new"] == 0.0, "a step forgets what was chosen in it"


def test_priority_goes_before_use_and_age_decides_where_accounts_tie() -> None:
    pods = [held("old", "b", 1), held("young", "a", 2), held("urgent", "heavy", 3, priority=5)]
    order = FairOrder(
        {name: (name,) for name in ("a", "b", "heavy")},
        {"a": 1000, "b": 1000, "heavy": 0},
        {"a": 0.0, "b": 0.0, "heavy": 1e15},
        0,
    )

    chosen = next_released(queues_of(pods), (), lambda pod: (), {}, 9, fair=order)

    assert [pod.uid for pod in chosen] == ["urgent", "old", "young"]


def test_where_sessions_are_rolled_up_a_day_counts_as_used_evenly(town: Town) -> None:
    """Within a factor of 2^(1 d / half-life) - 1."""
    shares(town, team_a="gpuHours: unlimited\nfairShare: {halfLife: 2d}")
    for number in range(4):
        run(town, f"p{number}", "team-a", 5 * HOUR)
    for number in range(4):
        town.change("pods", gpu_pod(f"p{number}", namespace="team-a", started_ms=T0), deleted=True)
    town.clock.turn(3 * DAY)
    town.node_heard()
    exact = integrated(posted(town, "team-a"), town.clock(), 2 * DAY)
    with town.store.writing() as connection:
        assert postings.roll_up(connection, town.clock() - DAY, town.clock(), "", 100).sessions == 4
        connection.execute(ACCOUNTS.update().values(format=0))
    assert not posted(town, "team-a")

    town.resume()

    row = rows(town)["team-a"]
    assert row.decayed_ms == town.clock()
    assert 0 < abs(row.decayed / exact - 1) <= 2 ** (DAY / (2 * DAY)) - 1


def test_a_namespace_that_gets_an_entry_takes_its_past_and_one_that_joins_a_group_leaves_it(
    town: Town,
) -> None:
    shares(town, team_a="gpuHours: unlimited", **{"_group.g": "gpuHours: unlimited"})
    run(town, "a", "team-a", 2 * HOUR)
    run(town, "b", "team-b", 3 * HOUR)
    entries = {"team_a": "gpuHours: unlimited\ngroup: g", "team_b": "gpuHours: unlimited\ngroup: g"}
    town.change("configmaps", budgets(_settings=ON, **entries, **{"_group.g": "gpuHours: unlimited"}))
    run(town, "c", "team-b", HOUR)

    found, half_life = rows(town), 14 * DAY
    before, after = posted(town, "team-b")[:-1], posted(town, "team-b")[-1:]
    for account, charges in (("team-b", [*before, *after]), ("_defaults", before), ("_group.g", after)):
        right = integrated(charges, found[account].decayed_ms, half_life)
        assert math.isclose(found[account].decayed, right, rel_tol=1e-9), account


def test_held_pods_have_the_same_order_after_a_restart_in_mid_release(town: Town) -> None:
    """What a released pod reserves is known by its own state, and counts once: neither leaks nor doubles. A
    pod that waits and was never held counts nothing."""
    hold = "gpuHours: 100\nonExhausted: hold"
    shares(town, team_a=hold, team_b=hold)
    run(town, "p", "team-a", HOUR)
    for number, name in enumerate(("team-a", "team-b")):
        pod = gpu_pod(f"w{number}", namespace=name, bound_ms=None)
        pod["spec"]["schedulingGates"] = [{"name": "bursar.dev/budget"}]
        town.change("pods", pod)
    town.change("pods", gpu_pod("x", namespace="team-b", bound_ms=None, created_ms=town.clock()))
    released = gpu_pod("r", namespace="team-b", bound_ms=None, created_ms=town.clock())
    released["metadata"]["annotations"]["bursar.dev/held"] = "budget"
    town.change("pods", released)
    before = town.settler.view.held.fair
    assert before is not None
    assert before.uses["team-b"] == 10 * MINUTE * GPU
    assert before.place("team-b") < before.place("team-a")

    town.resume()
    assert town.settler.view.held.fair == before

    town.change("pods", released, deleted=True)
    after = town.settler.view.held.fair
    assert after is not None
    assert after.uses["team-b"] == 0.0, "a penalty that outlives its pod would be leaked"


def history(town: Town, seed: int, settings: str) -> dict[str, Any]:
    """What a random life leaves in the ledger."""
    chosen, pods = random.Random(seed), dict[str, Json]()
    entries = {
        "team_a": "gpuHours: 5\nperiod: day\ncarryOver: 0.5\ngroup: g",
        "team_b": "gpuHours: 3\nperiod: day\nreserve: declared\ngroup: g",
        "_group.g": "gpuHours: 6\nperiod: day",
        "_defaults": "gpuHours: 2",
        "_settings": settings,
    }
    town.begin(("nodes", node("n1", cards=8)), ("leases", lease(T0)), ("configmaps", budgets(**entries)))
    for number in range(60):
        town.advance(chosen.randrange(SECOND, 40 * MINUTE) // SECOND * SECOND, heard=chosen.random() < 0.8)
        name = chosen.choice([*pods, f"p{number}"])
        if name not in pods:
            pods[name] = gpu_pod(
                name,
                namespace=chosen.choice(("team-a", "team-b", "other", "more")),
                started_ms=town.clock(),
                percent=chosen.choice((20, 50, 100)),
            )
            town.change("pods", pods[name])
        else:
            town.change("pods", pods.pop(name), deleted=True)
    town.advance(2 * HOUR)
    findings: list[Finding] = []
    with town.store.reading() as connection:
        audit(connection, town.clock(), findings.append)
        found = {
            table.name: sorted(map(repr, connection.execute(select(table))))
            for table in (POSTINGS, GRANTS, DAYS, SESSIONS)
        }
    assert findings == []
    cache = town.settler.ledger.statement_cache
    assert cache is not None
    of_all = {**cache.statements.namespaces, **cache.statements.groups}
    return {**found, "accounts": {name: (of.balance, of.carried, of.standing) for name, of in of_all.items()}}


@pytest.mark.parametrize("seed", range(3))
def test_no_unit_of_any_account_differs_by_the_order(town: Town, tmp_path: Path, seed: int) -> None:
    (tmp_path / "other").mkdir()
    other = Town(tmp_path / "other")
    try:
        assert history(town, seed, ON) == history(other, seed, "fairShare: off")
    finally:
        other.close()


def test_the_life_of_a_waiting_pod_says_where_its_account_stands(town: Town) -> None:
    shares(town, team_a="gpuHours: 100", team_b="gpuHours: 100")
    run(town, "p", "team-a", 10 * HOUR)
    town.advance(10 * MINUTE)
    for namespace in ("team-a", "stranger"):
        figures = {"cardsNeeded": 1, "memoryNeededMib": 8192, "podsAhead": 4}
        waits = posted_decision(
            kind="waiting",
            reason="full",
            name="w",
            namespace=namespace,
            uid=f"uid-w-{namespace}",
            figures=figures,
        )
        assert post_decision(town, waits) == 200

    said = town.get("/v1/explain/team-a/w").get_json()["waitsFor"][-1]
    others = town.get("/v1/explain/stranger/w").get_json()["waitsFor"][-1]

    assert said == "third of three to go: team-a used 3.0 times its share, by a half-life of 14 days"
    assert others.startswith("first of three to go: the rest, without an entry, has used nothing of late, by")


def test_what_an_open_session_has_posted_counts_once(town: Town) -> None:
    """Kueue counted use twice (#13844)."""
    shares(town, team_a="gpuHours: 100", team_b="gpuHours: 100")
    town.change("pods", gpu_pod("p", namespace="team-a", started_ms=T0))
    town.advance(HOUR)
    town.advance(2 * HOUR, heard=False)  # posted on its last evidence, and open
    (charge,) = posted(town, "team-a")
    town.advance(HOUR)

    used = town.get("/v1/budgets/team-a").get_json()["fairShare"]["decayed"]

    ran = (T0, town.clock(), 1000)
    right = integrated([ran], town.clock(), 14 * DAY) + 10 * MINUTE * GPU
    assert charge[1] < town.clock()
    assert math.isclose(used, right, rel_tol=2e-4)


def test_an_account_of_twice_the_weight_gets_twice_as_much() -> None:
    pods = [held(f"{name}{at}", name, at) for name in ("double", "single") for at in range(4)]
    order = FairOrder(
        {"double": ("double",), "single": ("single",)},
        {"double": 2000, "single": 1000},
        {"double": 1.0, "single": 1.0},
        MINUTE,
    )

    chosen = next_released(queues_of(pods), (), lambda pod: (), {}, 6, fair=order)

    assert [pod.namespace for pod in chosen].count("double") == 4


def test_an_entry_that_changes_nothing_of_shares_changes_no_rank_between_two_points(town: Town) -> None:
    town.clock.turn(-(town.clock() % (10 * MINUTE)) + MINUTE)
    shares(town, team_a="gpuHours: 100", team_b="gpuHours: 100")
    town.change("pods", gpu_pod("a", namespace="team-a", started_ms=town.clock()))
    town.advance(MINUTE)
    changed = {"team_a": "gpuHours: 200", "team_b": "gpuHours: 100"}
    town.change("configmaps", budgets(_settings=ON, **changed))
    assert ranks(town) == {"team-a": 1, "team-b": 1, "": 1}

    changed["team_b"] = "gpuHours: 100\nfairShare: {weight: 2}"
    town.change("configmaps", budgets(_settings=ON, **changed))
    assert ranks(town) == {"team-b": 1, "": 1, "team-a": 3}


def test_the_page_of_a_namespace_has_share_decayed_use_and_rank_and_without_shares_none(town: Town) -> None:
    app = create_dashboard(lambda environ, start: [], town.clock)
    page = app.jinja_env.from_string(
        '{% import "macros.html" as m with context %}{{ m.account(budget, none) }}{{ m.notes(budget) }}'
    )

    def shown() -> str:
        budget = town.get("/v1/budgets/team-a").get_json()
        with app.test_request_context():
            g.zone = UTC
            return page.render(budget=budget)

    shares(town, team_a="gpuHours: 100\nfairShare: {weight: 3}", team_b="gpuHours: 100")
    run(town, "p", "team-a", 10 * HOUR)
    town.advance(10 * MINUTE)
    with_shares = shown()
    town.change("configmaps", budgets(team_a="gpuHours: 100"))

    assert "<dt>Used of late</dt><dd>9.89<small>share 60%, rank 3 of 3</small></dd>" in with_shares
    assert "Third of three to go: team-a used 1.7 times its share, by a half-life of 14 days." in with_shares
    assert "Used of late" not in shown()
    assert town.get("/v1/budgets/team-a").get_json()["fairShare"] is None
