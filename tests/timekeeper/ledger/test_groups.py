"""Groups: a namespace is in budget only if its group is too; a group counts what its members spent while they
were in it."""

import pytest

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
from timekeeper.core.budgets.policy import GPU_HOUR

MEMBER = "gpuHours: 100\ngroup: lab"
LAB = "gpuHours: 10"
NO_LOOKAHEAD = "lookahead: 0s"
DEC_1 = T0 + 10 * DAY + 14 * HOUR


@pytest.fixture
def lab(town: Town) -> Town:
    """For days now team-a and team-b have plenty of their own, and ten GPU-hours a month together."""
    entries = {"team_a": MEMBER, "team_b": MEMBER, "_settings": NO_LOOKAHEAD}
    town.clock.at_ms = T0 - 5 * DAY
    town.begin(
        ("nodes", node(cards=8)),
        ("leases", lease(T0)),
        ("configmaps", budgets(**entries, **{"_group.lab": LAB})),
    )
    town.clock.at_ms = T0
    town.tick()
    return town


def say(town: Town, **entries: str) -> None:
    """The ConfigMap now holds these entries."""
    town.clock.turn(SECOND)
    town.change(
        "configmaps", budgets(**{key.replace("_lab", "_group.lab"): each for key, each in entries.items()})
    )


def ran(town: Town, name: str, namespace: str, start_ms: int, hours: float, gpus: int = 1) -> None:
    """Pods of the namespace ran for so many hours on a card each, and ended."""
    for card in range(gpus):
        at_ms, end_ms = start_ms, start_ms + int(hours * HOUR)
        pod = gpu_pod(
            f"{name}-{card}",
            namespace=namespace,
            bound_ms=at_ms,
            started_ms=at_ms,
            ended_ms=end_ms,
            card=card,
        )
        town.hear("pods", pod)
    town.tick()


def spent(account: Json) -> int:
    return int(account["posted"] + account["pending"])


def document(town: Town, namespace: str = "team-a") -> Json:
    found = town.get("/v1/standings").get_json()
    entry: Json = found["namespaces"].get(namespace, found["default"])
    return entry


def test_a_group_that_is_exhausted_takes_all_its_members_out_of_budget(lab: Town) -> None:
    ran(lab, "p", "team-a", T0 - 12 * HOUR, 10)

    assert [lab.standing("team-a"), lab.standing("team-b")] == ["OVER_BUDGET", "OVER_BUDGET"]
    assert lab.budget("team-b")["remaining"] == 100 * GPU_HOUR
    assert lab.budget("team-b")["group"]["remaining"] == 0


def test_an_exhausted_member_puts_no_other_member_over_budget(lab: Town) -> None:
    ran(lab, "p", "team-a", T0 - 3 * HOUR, 2)
    say(lab, team_a="gpuHours: 1\ngroup: lab", team_b=MEMBER, _lab=LAB, _settings=NO_LOOKAHEAD)

    assert [lab.standing("team-a"), lab.standing("team-b")] == ["OVER_BUDGET", "IN_BUDGET"]


def test_a_groups_account_is_the_sum_of_its_members_and_posts_nothing_of_its_own(lab: Town) -> None:
    ran(lab, "p", "team-a", T0 - 3 * HOUR, 2)
    lab.hear("pods", gpu_pod("q", namespace="team-b", started_ms=T0))
    lab.advance(MINUTE)

    a, b = lab.budget("team-a"), lab.budget("team-b")
    assert a["group"]["name"] == "lab"
    assert a["group"]["posted"] == a["posted"] + b["posted"] == 2 * GPU_HOUR
    assert a["group"]["pending"] == a["pending"] + b["pending"] == GPU * MINUTE
    assert a["group"] == b["group"]


def test_what_members_run_reserves_for_the_group_and_what_waits_for_a_node_does_not(lab: Town) -> None:
    say(lab, team_a=MEMBER, team_b=MEMBER, _lab=LAB)
    lab.hear("pods", gpu_pod("runs", percent=50))
    lab.change("pods", gpu_pod("waits", percent=20, node=""))

    budget = lab.budget("team-a")
    assert budget["reserved"] == 700 * 10 * MINUTE
    assert budget["group"]["reserved"] == 500 * 10 * MINUTE


def test_a_namespace_takes_along_nothing_that_it_spent_before_it_came(lab: Town) -> None:
    ran(lab, "early", "team-c", T0 - 5 * HOUR, 4)
    say(lab, team_a=MEMBER, team_b=MEMBER, team_c=MEMBER, _lab=LAB, _settings=NO_LOOKAHEAD)
    joined = lab.clock()
    ran(lab, "late", "team-c", joined, 1)

    assert spent(lab.budget("team-c")) == 5 * GPU_HOUR
    assert spent(lab.budget("team-c")["group"]) == GPU_HOUR


def test_what_a_namespace_spent_stays_with_the_group_that_it_leaves(lab: Town) -> None:
    ran(lab, "p", "team-a", T0 + HOUR, 0)
    lab.hear("pods", gpu_pod("q", started_ms=T0))
    lab.advance(2 * HOUR)
    say(lab, team_a="gpuHours: 100\ngroup: other", team_b=MEMBER, _lab=LAB, _settings=NO_LOOKAHEAD)
    lab.advance(3 * HOUR - SECOND)

    assert spent(lab.budget("team-b")["group"]) == GPU * (2 * HOUR + SECOND)
    assert spent(lab.budget("team-a")["group"]) == GPU * (3 * HOUR - SECOND)
    assert spent(lab.budget("team-a")) == 5 * GPU_HOUR


def test_a_former_member_reserves_nothing_for_the_group(lab: Town) -> None:
    say(lab, team_a=MEMBER, team_b=MEMBER, _lab=LAB)
    lab.change("pods", gpu_pod("runs", percent=50))
    assert lab.budget("team-b")["group"]["reserved"] == 500 * 10 * MINUTE

    say(lab, team_a="gpuHours: 100", team_b=MEMBER, _lab=LAB)

    assert lab.budget("team-b")["group"]["reserved"] == 0
    assert lab.budget("team-a")["reserved"] == 500 * 10 * MINUTE


def test_a_correction_of_a_former_members_session_corrects_the_group_too(lab: Town) -> None:
    lab.hear("pods", gpu_pod("p", started_ms=T0))
    lab.advance(HOUR)
    say(lab, team_a="gpuHours: 100", team_b=MEMBER, _lab=LAB, _settings=NO_LOOKAHEAD)
    lab.clock.turn(SECOND)
    lab.change("pods", gpu_pod("p", started_ms=T0, ended_ms=T0 + 10 * MINUTE))

    assert spent(lab.budget("team-b")["group"]) == GPU * 10 * MINUTE


def test_a_group_may_have_another_period_than_its_members(lab: Town) -> None:
    say(lab, team_a=MEMBER, team_b=MEMBER, _lab="gpuHours: 3\nperiod: day", _settings=NO_LOOKAHEAD)
    lab.clock.turn(2 * DAY)
    ran(lab, "p", "team-a", T0 + DAY, 5)
    assert lab.standing() == "IN_BUDGET"
    ran(lab, "q", "team-a", T0 + 2 * DAY - 4 * HOUR, 3)
    assert lab.standing() == "OVER_BUDGET"

    lab.clock.at_ms = T0 + 2 * DAY + 14 * HOUR
    lab.tick()

    assert lab.standing() == "IN_BUDGET"
    assert spent(lab.budget()) == 8 * GPU_HOUR
    assert spent(lab.budget()["group"]) == 0


def test_a_standing_is_valid_until_the_first_account_ends(lab: Town) -> None:
    say(lab, team_a=MEMBER, team_b=MEMBER, _lab="gpuHours: 3\nperiod: day", _settings=NO_LOOKAHEAD)

    assert document(lab)["validUntil"] == T0 + 14 * HOUR


def test_over_budget_is_valid_until_the_exhausted_account_ends(lab: Town) -> None:
    """The group's new day changes nothing for a member that has spent its own month."""
    day = "gpuHours: 3\nperiod: day"
    say(lab, team_a="gpuHours: 0\ngroup: lab", team_b=MEMBER, _lab=day, _settings=NO_LOOKAHEAD)

    assert document(lab)["validUntil"] == DEC_1
    say(
        lab,
        team_a="gpuHours: 0\ngroup: lab",
        team_b=MEMBER,
        _lab="gpuHours: 0\nperiod: day",
        _settings=NO_LOOKAHEAD,
    )
    assert document(lab)["validUntil"] == DEC_1
    assert document(lab, "team-b")["validUntil"] == T0 + 14 * HOUR


def test_the_budget_that_is_exhausted_says_what_happens(lab: Town) -> None:
    deny = LAB + "\nonExhausted: deny"
    say(lab, team_a=MEMBER, team_b=MEMBER, _lab=deny, _settings=NO_LOOKAHEAD)
    ran(lab, "p", "team-b", T0 - 12 * HOUR, 10)

    entry = document(lab)
    assert (entry["standing"], entry["onExhausted"], entry["group"]) == ("OVER_BUDGET", "deny", "lab")


@pytest.mark.parametrize(("own", "group"), [("deny", "deprioritize"), ("deprioritize", "deny")])
def test_of_two_exhausted_budgets_the_stricter_says_what_happens(lab: Town, own: str, group: str) -> None:
    say(
        lab,
        team_a=f"gpuHours: 0\ngroup: lab\nonExhausted: {own}",
        team_b=MEMBER,
        _lab=f"gpuHours: 0\nonExhausted: {group}",
        _settings=NO_LOOKAHEAD,
    )

    assert document(lab)["onExhausted"] == "deny"


def test_the_document_says_where_the_account_of_the_group_decides(lab: Town) -> None:
    say(lab, team_a="gpuHours: 4\ngroup: lab", team_b=MEMBER, _lab=LAB, _settings=NO_LOOKAHEAD)

    assert "groupDecides" not in document(lab)  # the namespace has less left
    assert document(lab, "team-b")["groupDecides"] is True
    ran(lab, "p", "team-b", T0 - 12 * HOUR, 7)
    assert document(lab)["groupDecides"] is True


def test_the_reported_remainder_is_the_smaller_of_both(lab: Town) -> None:
    assert document(lab)["remaining"] == 10 * GPU_HOUR
    say(lab, team_a="gpuHours: 4\ngroup: lab", team_b=MEMBER, _lab=LAB, _settings=NO_LOOKAHEAD)
    assert document(lab)["remaining"] == 4 * GPU_HOUR


def test_users_are_warned_by_the_account_that_is_nearly_spent(lab: Town) -> None:
    warned = LAB + "\nwarnAt: 0.5"
    say(lab, team_a=MEMBER + "\nwarnAt: 0.9", team_b=MEMBER, _lab=warned, _settings=NO_LOOKAHEAD)
    ran(lab, "p", "team-b", T0 - 12 * HOUR, 6)

    entry = document(lab)
    assert (entry["ratio"], entry["warnAt"]) == (600, 500)


def test_an_unlimited_namespace_is_bound_by_its_group_alone(lab: Town) -> None:
    own = "gpuHours: unlimited\ngroup: lab"
    say(lab, team_a=own, team_b=MEMBER, _lab=LAB, _settings=NO_LOOKAHEAD)
    entry = document(lab)
    assert (entry["standing"], entry["remaining"], entry["validUntil"]) == ("IN_BUDGET", 10 * GPU_HOUR, DEC_1)

    ran(lab, "p", "team-b", T0 - 12 * HOUR, 10)

    assert lab.standing() == "OVER_BUDGET"


def test_a_group_without_an_entry_has_no_limit_and_that_is_reported(town: Town) -> None:
    town.begin(("nodes", node()), ("leases", lease(T0)), ("configmaps", budgets(team_a=MEMBER)))

    warning = "group: _group.lab is not defined in any budget ConfigMap, so the group has no limit"
    assert town.standing() == "IN_BUDGET"
    assert town.budget()["warnings"] == [warning]
    assert town.budget()["group"]["standing"] == "UNLIMITED"
    assert any("_group.lab" in notice.message for notice in town.notices)


def test_an_entry_that_comes_later_binds_the_group_from_then_on(town: Town) -> None:
    town.begin(("nodes", node()), ("leases", lease(T0)), ("configmaps", budgets(team_a=MEMBER)))
    ran(town, "p", "team-a", T0 - 12 * HOUR, 3)
    ran(town, "q", "team-a", T0, 2)
    say(town, team_a=MEMBER, _lab="gpuHours: 2")

    assert spent(town.budget()["group"]) == 2 * GPU_HOUR
    assert town.standing() == "OVER_BUDGET"


def test_when_a_groups_entry_goes_its_members_go_on(lab: Town) -> None:
    ran(lab, "p", "team-a", T0 - 12 * HOUR, 10)
    assert lab.standing("team-b") == "OVER_BUDGET"

    say(lab, team_a=MEMBER, team_b=MEMBER, _settings=NO_LOOKAHEAD)

    assert lab.standing("team-b") == "IN_BUDGET"
    assert any(notice.reason == "MissingGroup" and "team-b" in notice.message for notice in lab.notices)


def test_a_broken_entry_of_a_group_keeps_its_last_good_one_in_force(lab: Town) -> None:
    say(lab, team_a=MEMBER, team_b=MEMBER, _lab="gpuHours: many", _settings=NO_LOOKAHEAD)

    group = lab.budget()["group"]
    assert group["granted"] == 10 * GPU_HOUR
    assert "gpuHours" in group["lastError"]


def test_a_group_has_grants_of_its_own(lab: Town) -> None:
    more = {"subject": "_group.lab", "gpuHours": "5", "reason": "a deadline"}
    assert lab.post("/v1/grants", more, **{"Idempotency-Key": "k1"}).status_code in (200, 201)
    lab.tick()

    assert lab.budget()["group"]["granted"] == 15 * GPU_HOUR
    assert document(lab)["remaining"] == 15 * GPU_HOUR


def test_a_grant_to_the_group_brings_its_members_back_into_budget(lab: Town) -> None:
    ran(lab, "p", "team-a", T0 - 12 * HOUR, 10)
    assert lab.standing("team-b") == "OVER_BUDGET"

    more = {"subject": "_group.lab", "gpuHours": "5", "reason": "a deadline"}
    lab.post("/v1/grants", more, **{"Idempotency-Key": "k1"})
    lab.tick()

    assert lab.standing("team-b") == "IN_BUDGET"


# --- the common pool ---

POOL = "gpuHours: unlimited\ngroup: pool"


def pool(town: Town, default: str = POOL, **entries: str) -> None:
    made = budgets(
        **{"_defaults": default, "_group.pool": "gpuHours: 6", "_settings": NO_LOOKAHEAD}, **entries
    )
    town.begin(("nodes", node(cards=8)), ("leases", lease(T0)), ("configmaps", made))


def test_namespaces_without_an_entry_share_the_pool_that_defaults_names(town: Town) -> None:
    pool(town)
    ran(town, "p", "team-a", T0, 4)
    assert [town.standing("team-a"), town.standing("never-seen")] == ["IN_BUDGET", "IN_BUDGET"]
    ran(town, "q", "team-b", T0, 2)

    standings = [town.standing(name) for name in ("team-a", "team-b", "never-seen")]
    assert standings == ["OVER_BUDGET", "OVER_BUDGET", "OVER_BUDGET"]
    assert town.budget("never-seen")["group"]["remaining"] == 0


def test_a_namespace_with_an_entry_is_not_in_the_pool(town: Town) -> None:
    pool(town, team_a="gpuHours: 100")
    ran(town, "p", "team-a", T0, 50)

    assert [town.standing("team-a"), town.standing("team-b")] == ["IN_BUDGET", "IN_BUDGET"]
    assert town.budget("team-a")["group"] is None
    assert town.budget("team-b")["group"]["remaining"] == 6 * GPU_HOUR


def test_a_pool_may_stand_beside_a_number_for_each(town: Town) -> None:
    pool(town, default="gpuHours: 2\ngroup: pool")
    ran(town, "p", "team-a", T0, 2)

    assert [town.standing("team-a"), town.standing("team-b")] == ["OVER_BUDGET", "IN_BUDGET"]


def test_a_namespace_that_gets_its_own_entry_leaves_what_it_spent_in_the_pool(town: Town) -> None:
    pool(town)
    ran(town, "p", "team-a", T0, 4)
    town.clock.turn(5 * HOUR)
    own = {"_defaults": POOL, "_group.pool": "gpuHours: 6", "_settings": NO_LOOKAHEAD}
    town.change("configmaps", budgets(**own, team_a="gpuHours: 5"))
    ran(town, "q", "team-a", town.clock(), 1)

    assert town.budget("team-b")["group"]["remaining"] == 2 * GPU_HOUR
    assert town.standing("team-a") == "OVER_BUDGET"


def test_who_may_not_see_the_group_sees_its_name_and_standing_alone(lab: Town) -> None:
    ran(lab, "p", "team-b", T0, 11)
    lab.reviews.denied.add(("admin", "get", "budgets", "_group.lab"))

    budget = lab.budget()

    assert budget["group"] == {"name": "lab", "standing": "OVER_BUDGET"}
    assert not [each for each in budget["warnings"] if "group" in each]
    assert lab.get("/v1/budgets/_group.lab").status_code == 403


def test_all_groups_are_listed_with_their_accounts(lab: Town) -> None:
    ran(lab, "p", "team-a", T0 - 12 * HOUR, 3)

    answer = lab.get("/v1/budgets").get_json()
    assert [each["namespace"] for each in answer["groups"]] == ["_group.lab"]
    assert answer["groups"][0]["posted"] == 3 * GPU_HOUR
    assert [each["group"]["posted"] for each in answer["budgets"]] == [3 * GPU_HOUR, 3 * GPU_HOUR]
    assert lab.budget("_group.lab")["posted"] == 3 * GPU_HOUR


def test_after_a_restart_a_group_counts_the_same(lab: Town) -> None:
    ran(lab, "p", "team-a", T0 - 12 * HOUR, 3)
    ran(lab, "q", "team-b", T0 - 12 * HOUR, 8)
    before = lab.budget("_group.lab")

    lab.resume()

    assert lab.budget("_group.lab") == before
    assert lab.standing("team-a") == "OVER_BUDGET"


def test_a_period_that_begins_puts_the_group_in_budget_without_an_event(lab: Town) -> None:
    ran(lab, "p", "team-a", T0 - 12 * HOUR, 11)
    assert lab.standing("team-b") == "OVER_BUDGET"

    lab.clock.at_ms = DEC_1
    lab.tick()

    assert lab.standing("team-b") == "IN_BUDGET"
    assert lab.budget("team-b")["group"]["granted"] == 10 * GPU_HOUR


def test_a_changed_cap_of_namespace_or_group_is_published_to_all_that_it_applies_to(lab: Town) -> None:
    def published(namespace: str) -> list[object]:
        entry = lab.get("/v1/standings").get_json()["namespaces"][namespace]
        return [entry.get("caps"), entry.get("groupCaps")]

    assert published("team-a") == [None, None]

    say(lab, team_a=f"{MEMBER}\nmaxGPUs: 1.5", team_b=MEMBER, _lab=LAB, _settings=NO_LOOKAHEAD)

    assert published("team-a") == [{"total": 1_500, "pod": None}, None]

    group = f"{LAB}\nmaxGPUsPerPod: 0.5"
    say(lab, team_a=f"{MEMBER}\nmaxGPUs: 1.5", team_b=MEMBER, _lab=group, _settings=NO_LOOKAHEAD)

    assert published("team-a") == [{"total": 1_500, "pod": None}, {"total": None, "pod": 500}]
    assert published("team-b") == [None, {"total": None, "pod": 500}]
