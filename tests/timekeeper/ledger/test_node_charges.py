"""Who was charged on a node until when, and in words why no longer: while it is there, silent, gone and
back."""

from datetime import UTC, datetime

import pytest

from tests.timekeeper.databases import ON_BOTH
from tests.timekeeper.worlds import (
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
    token,
    user_status,
)
from timekeeper.api.sheets.sessions import NODE_CHARGES
from timekeeper.edge.reflector import WatchFailed
from timekeeper.settler.cluster.cluster_state import WatchUpdate

PODS = (
    gpu_pod("long", started_ms=T0, card=0),
    gpu_pod("short", namespace="team-b", started_ms=T0, card=1, percent=50),
    gpu_pod("elsewhere", node="n2", started_ms=T0),
)
DIED = T0 + HOUR  # when the kubelet of n1 renewed its Lease last
READER = token("reader")


def at(ms: int) -> str:
    """The time in RFC 3339."""
    return f"{datetime.fromtimestamp(ms // 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"


@pytest.fixture
def town(town: Town) -> Town:
    """Two pods on n1, one on n2; n1 was heard last when an hour had passed, and n2 goes on."""
    entries = budgets(team_a="gpuHours: 9\nperiod: month\ngroup: lab", team_b="gpuHours: 9\nperiod: month")
    nodes = (("nodes", node("n1", 2)), ("nodes", node("n2", 2)))
    town.begin(("configmaps", entries), *nodes, *(("pods", each) for each in PODS))
    town.clock.turn(HOUR)
    town.hear("leases", lease(town.clock(), "n1"))
    passes(town, 0)
    return town


def passes(town: Town, ms: int) -> None:
    """Time passes; of the nodes only n2 is heard."""
    town.clock.turn(ms)
    town.node_heard("n2")
    town.tick()


def charges(town: Town, query: str = "") -> Json:
    answer = town.get(f"/v1/nodes/n1{query}")
    assert answer.status_code == 200, answer.text
    found: Json = answer.get_json()
    return found


def until(answer: Json) -> list[tuple[str, str | None, str, int]]:
    return [(each["pod"], each["to"], each["end"], each["amount"]) for each in answer["charges"]]


def dies(town: Town) -> None:
    """Ten minutes later its Node is removed, and two minutes later the objects of its pods."""
    passes(town, 10 * MINUTE)
    town.change("nodes", node("n1", 2), deleted=True)
    town.hear("leases", lease(DIED, "n1"), deleted=True)
    passes(town, 2 * MINUTE)
    for each in PODS[:2]:
        town.hear("pods", each, deleted=True)
    passes(town, MINUTE)


def test_while_the_node_is_there_its_pods_run_and_others_are_not_shown(town: Town) -> None:
    found = charges(town)

    assert (found["state"], found["heard"], found["left"]) == ("there", at(DIED), None)
    assert until(found) == [("long", None, "runs", GPU * HOUR), ("short", None, "runs", GPU * HOUR // 2)]
    assert [(each["namespace"], each["group"], each["heldMilli"]) for each in found["charges"]] == [
        ("team-a", "lab", 1000),
        ("team-b", "", 500),
    ]
    assert found["charges"][0]["cards"] == ["GPU-0"]
    assert found["total"]["amount"] == GPU * HOUR * 3 // 2
    assert (found["from"], found["to"]) == (at(DIED - 24 * HOUR), at(DIED))


def test_a_removed_pod_holds_its_cards_until_its_grace_is_over(town: Town) -> None:
    town.hear("pods", PODS[0], deleted=True)
    passes(town, 10 * SECOND)
    assert ("long", None, "leaving") in [row[:3] for row in until(charges(town))]

    passes(town, MINUTE)
    assert ("long", at(DIED + 30 * SECOND), "removed") in [row[:3] for row in until(charges(town))]


def test_a_silent_node_charges_until_it_was_heard(town: Town) -> None:
    passes(town, 50 * SECOND)
    assert charges(town)["state"] == "there"  # a kubelet may be late

    passes(town, 5 * MINUTE)

    found = charges(town)
    assert (found["state"], found["heard"], found["left"]) == ("silent", at(DIED), None)
    assert until(found) == [
        ("long", at(DIED), "silent", GPU * HOUR),
        ("short", at(DIED), "silent", GPU * HOUR // 2),
    ]
    assert NODE_CHARGES.table(found, 0)["notes"][0] == (
        "Node n1 is silent: it was last heard with a pod on it at 2026-11-20 11:00:00Z; the API server still"
        " has it."
    )


def test_a_timekeeper_that_hears_nothing_calls_no_node_silent(town: Town) -> None:
    town.settler.apply(WatchUpdate("leases", town.clock(), WatchFailed("refused")))
    town.clock.turn(5 * MINUTE)
    town.tick()

    assert charges(town)["state"] == "there"


def test_a_node_that_left_says_when_and_until_when_each_pod_was_charged(town: Town) -> None:
    dies(town)

    found = charges(town)

    gone, removed = DIED + 10 * MINUTE, DIED + 12 * MINUTE
    assert (found["state"], found["heard"], found["left"]) == ("left", at(DIED), at(gone))
    held = removed + 30 * SECOND - T0  # and the grace period of 30 s
    assert until(found) == [
        ("long", at(T0 + held), "removed", GPU * held),
        ("short", at(T0 + held), "removed", GPU * held // 2),
    ]
    assert NODE_CHARGES.table(found, 0)["notes"][0] == (
        "Node n1 has left: it was last heard with a pod on it at 2026-11-20 11:00:00Z, and the API server has"
        " no such Node since 2026-11-20 11:10:00Z."
    )
    table = NODE_CHARGES.table(found, 0)
    keys = [each["key"] for each in table["columnDefinitions"]]
    first = dict(zip(keys, table["rows"][0]["cells"], strict=True))
    assert (first["from"], first["to"], first["held"]) == (
        "2026-11-20 10:00:00Z",
        "2026-11-20 11:12:30Z",
        "1",
    )
    assert "removed without a reported end" in str(first["why"])


def test_that_it_left_is_known_to_the_next_timekeeper_and_until_it_is_back(town: Town) -> None:
    dies(town)
    gone = at(DIED + 10 * MINUTE)
    town.resume()
    passes(town, MINUTE)
    assert charges(town)["left"] == gone

    town.change("nodes", node("n1", 2))

    assert (charges(town)["state"], charges(town)["left"]) == ("there", None)
    assert [end for _, _, end, _ in until(charges(town))] == ["removed", "removed"]


def test_a_proved_end_and_one_without_a_time_are_told_apart(town: Town) -> None:
    town.hear("pods", gpu_pod("long", started_ms=T0, ended_ms=T0 + HOUR // 2))
    town.hear("pods", gpu_pod("short", namespace="team-b", card=1, percent=50, phase="Failed"))
    passes(town, MINUTE)

    ends = {pod: (to, end) for pod, to, end, _ in until(charges(town))}

    assert ends["long"] == (at(T0 + HOUR // 2), "reported")
    assert ends["short"] == (at(DIED), "unreported")


def test_times_choose_and_pages_follow_each_other(town: Town) -> None:
    dies(town)

    assert until(charges(town, f"?from={at(DIED + HOUR)}")) == []
    first = charges(town, "?limit=1")
    second = charges(town, f"?limit=1&after={first['next']}")
    pods = [each["pod"] for page in (first, second) for each in page["charges"]]
    assert (sorted(pods), second["next"]) == (["long", "short"], None)
    assert first["state"] == second["state"] == "left"


@ON_BOTH
def test_a_reader_of_a_namespace_sees_its_own_rows_alone(town: Town) -> None:
    town.reviews.tokens[READER] = user_status("reader")
    town.reviews.denied |= {("reader", "get", "sessions", where) for where in ("", "team-a")}
    dies(town)

    assert town.get("/v1/nodes/n1", READER).status_code == 403
    assert town.get("/v1/nodes/n1?namespace=team-a", READER).status_code == 403
    own = town.get("/v1/nodes/n1?namespace=team-b", READER).get_json()
    assert [each["pod"] for each in own["charges"]] == ["short"]
    assert own["total"]["amount"] == own["charges"][0]["amount"]


@pytest.mark.parametrize(
    ("path", "status", "detail"),
    [
        ("n9", 404, "the ledger knows no node n9: no pod was charged there"),
        ("n2?namespace=team-b", 404, "the ledger has no charge of team-b on a node n2"),
        ("N_1", 400, "not a valid node name"),
        ("n1?from=2026-11-21&to=2026-11-20", 400, "it must be after from"),
    ],
)
def test_what_is_not_known_or_not_valid_is_a_sentence(
    town: Town, path: str, status: int, detail: str
) -> None:
    answer = town.get(f"/v1/nodes/{path}")

    assert (answer.status_code, answer.get_json()["detail"]) == (status, detail)
