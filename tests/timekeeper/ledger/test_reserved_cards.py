"""From when no other pod holds the cards that are reserved for a pod, until its Binding or until they are let
go, its namespace is charged, once, whatever becomes of the pod and of the settler."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.timekeeper.clocks import iso
from tests.timekeeper.worlds import GPU, MINUTE, SECOND, T0, Json, Town, gpu_pod, lease, node, placement
from timekeeper.operations.audit.audit import audit
from timekeeper.operations.audit.finding import Finding
from timekeeper.store.engine.upgrade import snapshot

SINCE = T0 + MINUTE
FREE = SINCE + 10 * SECOND + 250
BOUND = FREE + 30 * SECOND - 250
UNTIL = SINCE + 3 * MINUTE
EARLIER = FREE + 20 * SECOND - 250


def reserved(
    free: int | None = FREE,
    *,
    status: str = "True",
    changed: int = SINCE,
    until: int = UNTIL,
    devices: str = "",
    where: str = "n1",
    **pod: Any,
) -> Json:
    """The pod with the condition that the extender writes."""
    said = json.loads(devices or placement()) | {"node": where, "until": iso(until)}
    if free is not None:
        said["free"] = iso(free)
    raw = gpu_pod(**({"node": ""} | pod))
    raw["status"].setdefault("conditions", []).append(
        {
            "type": "bursar.dev/CardsHeld",
            "status": status,
            "reason": "Reclaim",
            "message": json.dumps(said) if status == "True" else "kube-scheduler refuses the node",
            "lastTransitionTime": iso(changed),
        }
    )
    return raw


@pytest.fixture
def waiting(town: Town) -> Town:
    """Cards of a node are reserved for a pod, and others hold them still."""
    town.begin(("nodes", node()), ("leases", lease(T0)), ("pods", gpu_pod(node="")))
    town.clock.turn(MINUTE)
    town.change("pods", reserved(free=None))
    return town


def reporting(boot: str) -> Json:
    """The node with its agent's report, by which no pod is there."""
    raw = node()
    report = {"version": 1, "boot": boot, "known": True, "closed": "", "pods": {}}
    raw["metadata"]["annotations"]["bursar.dev/holders"] = json.dumps(report)
    raw["status"] = {"nodeInfo": {"bootID": boot}, "conditions": [{"type": "Ready", "status": "True"}]}
    return raw


def goes_on(town: Town, until: int) -> None:
    """Time passes, and ticks with it; the node is silent."""
    town.advance(until - town.clock(), heard=False)


def written(town: Town) -> list[tuple[str, str, int, int]]:
    """Session, reason, and times of each posting, in order; their rate is that of the card."""
    query = "SELECT session_uid, reason, from_ms, to_ms, rate_milli FROM postings ORDER BY from_ms"
    with town.store.reading() as connection:
        rows = connection.exec_driver_sql(query).all()
    assert {row[4] for row in rows} <= {GPU}
    return [("own" if row[0] == "uid-p" else "hold", *row[1:4]) for row in rows]


def is_in_order(town: Town) -> None:
    findings: list[Finding] = []
    with snapshot(town.store) as connection:
        audit(connection, town.clock(), findings.append)
    assert findings == []


@pytest.mark.parametrize("is_restarted", [False, True])
def test_cards_that_are_free_for_a_pod_are_charged_until_its_binding_and_then_as_its_own(
    waiting: Town, *, is_restarted: bool
) -> None:
    goes_on(waiting, FREE)
    assert waiting.charged() == 0
    waiting.change("pods", reserved())
    goes_on(waiting, FREE + 20 * SECOND)
    assert waiting.charged() == 20 * SECOND * GPU
    if is_restarted:
        waiting.resume()
        goes_on(waiting, FREE + 25 * SECOND)
        assert waiting.charged() == 25 * SECOND * GPU

    goes_on(waiting, BOUND + SECOND)
    bound = reserved(node="n1", bound_ms=BOUND)
    waiting.change("pods", bound)
    waiting.advance(9 * SECOND)
    waiting.resume()

    assert written(waiting) == [("hold", "hold", FREE, BOUND)]
    assert waiting.charged() == (BOUND + 10 * SECOND - FREE) * GPU
    is_in_order(waiting)

    end = BOUND + 40 * SECOND
    goes_on(waiting, end + MINUTE)
    raw = reserved(node="n1", started_ms=BOUND, bound_ms=BOUND, ended_ms=end)
    waiting.change("pods", raw)
    waiting.resume()
    waiting.change("pods", raw, deleted=True)
    waiting.resume()

    assert written(waiting) == [
        ("hold", "hold", FREE, BOUND),
        ("own", "the kubelet's timestamps", BOUND, end),
    ]
    assert waiting.charged() == (end - FREE) * GPU
    rows = waiting.get("/v1/usage?group=pod").get_json()["rows"]
    assert sum(row["amount"] for row in rows) == (end - FREE) * GPU
    sessions = waiting.get("/v1/sessions").get_json()["sessions"]
    assert {":hold:" in each["uid"]: each["admittedInBudget"] for each in sessions} == {
        True: None,
        False: True,
    }
    is_in_order(waiting)


def is_withdrawn(town: Town) -> None:
    goes_on(town, EARLIER + SECOND)
    town.change("pods", reserved(status="False", changed=EARLIER))


def is_removed(town: Town) -> None:
    goes_on(town, EARLIER)
    town.change("pods", gpu_pod(node=""))


def is_reserved_anew(town: Town) -> None:
    """Between two lists, and for cards that others hold still."""
    goes_on(town, EARLIER + SECOND)
    town.change("pods", reserved(free=None, changed=EARLIER, until=UNTIL + MINUTE))


def is_deleted(town: Town) -> None:
    goes_on(town, EARLIER)
    town.change("pods", reserved(), deleted=True)


def is_withdrawn_and_deleted(town: Town) -> None:
    """Both before the settler looks."""
    town.hear("pods", reserved(status="False", changed=EARLIER))
    goes_on(town, EARLIER + SECOND)
    town.change("pods", reserved(status="False", changed=EARLIER), deleted=True)


def is_kept_by_a_finalizer(town: Town) -> None:
    goes_on(town, EARLIER + SECOND)
    raw = reserved()
    raw["metadata"] |= {"deletionTimestamp": iso(EARLIER), "deletionGracePeriodSeconds": 0}
    town.change("pods", raw)


def is_gone_from_the_list(town: Town) -> None:
    goes_on(town, EARLIER)
    town.quiet()
    town.clock.turn(5 * SECOND)
    town.change("pods", reserved(), deleted=True, unheard=True)
    town.hear_all("pods")
    town.tick()


def is_gone_when_a_settler_starts(town: Town) -> None:
    goes_on(town, EARLIER)
    town.clock.turn(5 * SECOND)
    town.objects["pods"].clear()
    town.resume()


@pytest.mark.parametrize(
    "let_go",
    [
        is_withdrawn,
        is_removed,
        is_reserved_anew,
        is_deleted,
        is_withdrawn_and_deleted,
        is_kept_by_a_finalizer,
        is_gone_from_the_list,
        is_gone_when_a_settler_starts,
    ],
)
@pytest.mark.parametrize("is_restarted", [False, True])
def test_the_charge_ends_when_the_cards_are_released(
    waiting: Town, let_go: Callable[[Town], None], *, is_restarted: bool
) -> None:
    goes_on(waiting, FREE)
    waiting.change("pods", reserved())
    goes_on(waiting, FREE + SECOND)
    if is_restarted:
        waiting.resume()

    let_go(waiting)
    goes_on(waiting, UNTIL + MINUTE)
    waiting.resume()

    assert written(waiting) == [("hold", "hold", FREE, EARLIER)]
    assert waiting.charged() == (EARLIER - FREE) * GPU
    is_in_order(waiting)


def test_an_unreleased_reservation_is_charged_to_its_end_and_a_late_binding_corrects_it(
    waiting: Town,
) -> None:
    goes_on(waiting, FREE)
    waiting.change("pods", reserved())
    waiting.resume()
    for boot, at in (
        ("b1", UNTIL - SECOND),
        ("b2", UNTIL + MINUTE),
    ):  # no vanished pod that an agent may list
        goes_on(waiting, at)
        waiting.change("nodes", reporting(boot))
    goes_on(waiting, UNTIL + 60 * MINUTE)
    assert written(waiting) == [("hold", "hold", FREE, UNTIL)]

    waiting.resume()
    waiting.change("pods", reserved(annotations={"other": "1"}))
    assert written(waiting) == [("hold", "hold", FREE, UNTIL)]

    waiting.change("pods", reserved(node="n1", bound_ms=BOUND))
    is_in_order(waiting)
    with waiting.store.reading() as connection:
        told = "SELECT sum(amount) FROM postings WHERE reason = 'hold'"
        assert int(connection.exec_driver_sql(told).scalar_one()) == (BOUND - FREE) * GPU


@pytest.mark.parametrize(
    "forged",
    [
        {"devices": placement(percent=50)},  # less than it requests
        {"devices": placement(card=7)},  # none of the node's cards
        {"where": "n2"},
        {"until": SINCE + 61 * MINUTE},
        {"free": UNTIL},
    ],
)
def test_a_condition_that_cannot_be_the_extenders_costs_nothing(waiting: Town, forged: Json) -> None:
    goes_on(waiting, FREE)
    waiting.change("pods", reserved(**forged))
    goes_on(waiting, UNTIL + MINUTE)
    waiting.tick()

    assert waiting.charged() == 0
    assert waiting.get("/v1/sessions").get_json()["sessions"] == []


def test_a_pod_bound_while_no_settler_ran_is_charged_for_its_reserved_cards_by_its_object(
    waiting: Town,
) -> None:
    waiting.clock.turn(BOUND + MINUTE - waiting.clock())
    waiting.objects["pods"].clear()
    waiting.start_anew()
    waiting.begin(("pods", reserved(node="n1", bound_ms=BOUND)))

    assert written(waiting) == [("hold", "hold", FREE, BOUND)]
    is_in_order(waiting)
