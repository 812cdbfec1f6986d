"""Which pods that use no card, or hold theirs past their declared time, are due: values in, values out."""

import json
from dataclasses import replace
from typing import Any, cast

import pytest

from tests.timekeeper.worlds import HOUR, MINUTE, SECOND, T0, gpu_pod
from timekeeper.accounts.budget_history import BudgetEntry, History, history_of
from timekeeper.accounts.card_use import idleness
from timekeeper.accounts.card_use.figures import CardSample, MeasuredSession, UsageSample
from timekeeper.accounts.card_use.idleness import DueStep, IdlePeriod, IdlePod, IdleTerms, Spared
from timekeeper.accounts.card_use.overuse import FRESH_MS
from timekeeper.accounts.held import declared
from timekeeper.accounts.pods import LedgerPod, read_pod
from timekeeper.core.kube.eviction import is_refused_for_good
from timekeeper.runtime.api_server import Answered, Unsent
from timekeeper.settler.evictions.calls import result_of

POD = cast(
    LedgerPod,
    read_pod(
        gpu_pod("p", started_ms=T0, annotations={"bursar.dev/held": "budget", "bursar.dev/declared": "600"})
    ),
)

# Idle pods

PERIOD = IdlePeriod(T0, T0 + 10 * MINUTE)
IDLE = {POD.uid: IdlePod(POD.uid, "team-a", "p", "n1", PERIOD)}
RECLAIM = IdleTerms("reclaim", 10 * MINUTE, 5 * MINUTE, 50)
EVICT = IdleTerms("evict", 10 * MINUTE, 5 * MINUTE, 50)
NOW = T0 + 10 * MINUTE + 1
WARNED_UNTIL = T0 + 15 * MINUTE + SECOND
WARNED = {"idle_until_ms": WARNED_UNTIL}


@pytest.mark.parametrize(
    ("pod", "idle", "terms", "now_ms", "expected"),
    [
        ({}, IDLE, RECLAIM, NOW, ("warn", WARNED_UNTIL)),
        ({}, {}, RECLAIM, NOW, None),
        ({}, IDLE, None, NOW, None),
        ({"node": "n2"}, IDLE, RECLAIM, NOW, None),
        ({"others_ended": True}, IDLE, RECLAIM, NOW, None),
        (WARNED, IDLE, RECLAIM, WARNED_UNTIL - 1, None),
        (WARNED, IDLE, RECLAIM, WARNED_UNTIL, ("reclaim", WARNED_UNTIL)),
        (WARNED, IDLE, EVICT, WARNED_UNTIL, ("evict", WARNED_UNTIL)),
        ({**WARNED, "is_reclaimable": True}, IDLE, RECLAIM, WARNED_UNTIL, None),
        ({**WARNED, "is_reclaimable": True}, {}, RECLAIM, WARNED_UNTIL, "spared"),
        (WARNED, IDLE, None, NOW, "spared"),
        ({"idle_until_ms": T0 + 9 * MINUTE}, IDLE, EVICT, NOW, ("warn", WARNED_UNTIL)),
    ],
    ids=[
        "idle for long enough",
        "not idle",
        "left alone",
        "idle on another node",
        "ended but for the sidecar",
        "in its grace",
        "after its grace, its cards may be taken",
        "after its grace, it is evicted",
        "its cards may be taken already",
        "idle no longer",
        "left alone from now on",
        "warned in an earlier idle time",
    ],
)
def test_what_is_due_about_an_idle_pod(
    pod: dict[str, Any],
    idle: dict[str, IdlePod],
    terms: IdleTerms | None,
    now_ms: int,
    expected: tuple[str, int] | str | None,
) -> None:
    found = list(idleness.due([replace(POD, **pod)], idle, lambda _: terms, now_ms))

    said = [each if isinstance(each, Spared) else (each.step, each.until_ms) for each in found]
    assert said == (
        [] if expected is None else [Spared(replace(POD, **pod))] if expected == "spared" else [expected]
    )
    assert all(each.period == PERIOD for each in found if isinstance(each, DueStep))


SETTINGS = "idleAfter: 10m\nidleGrace: 5m\nidleBelow: 0.05"


@pytest.mark.parametrize(
    ("entries", "action"),
    [
        ({"_settings": f"idle: evict\n{SETTINGS}"}, "evict"),
        ({"_settings": SETTINGS}, None),
        ({"team-a": "gpuHours: 100\nidle: off"}, None),
        ({"_defaults": "gpuHours: 100\nidle: off"}, None),
        ({"team-a": "gpuHours: 100\nmode: observe"}, None),
        ({"_settings": f"idle: evict\nmode: observe\n{SETTINGS}"}, None),
    ],
    ids=["evict", "off by default", "opt-out", "opt-out for all", "observed", "observed cluster"],
)
def test_what_budgets_say_of_idle_pods(entries: dict[str, str], action: str | None) -> None:
    found = budgets({"_settings": f"idle: reclaim\n{SETTINGS}"} | entries).idle_terms("team-a", T0)

    assert (found and found.action) == action


@pytest.mark.parametrize(
    ("looks", "since_ms"),
    [
        ([(0, 0), (MINUTE, 0)], T0),
        ([(0, None), (MINUTE, None)], None),
        ([(0, 0), (MINUTE, None)], T0),
        ([(0, 0), (FRESH_MS + 1, 0)], T0 + FRESH_MS + 1),
        ([(0, 0), (MINUTE, 5)], None),
        ([(0, 5), (MINUTE, 4)], T0 + MINUTE),
    ],
    ids=["unused", "never measured", "not measured now", "after a gap", "used now", "used before"],
)
def test_since_when_a_pod_is_idle_by_its_nodes_samples(
    looks: list[tuple[int, int | None]], since_ms: int | None
) -> None:
    card = {"uuid": "A", "index": 0, "share_milli": 1_000, "memory_mib": 10}
    devices = json.dumps({"version": 1, "containers": {"main": [card]}})
    samples = [
        (T0 + at_ms, UsageSample(0, (("p", (CardSample("A", percent, 10, exclusive=True),)),), ()))
        for at_ms, percent in looks
    ]
    sessions = {"p": MeasuredSession("p", T0, None, devices, 1_000)}

    found = idleness.follow_idle({}, samples, sessions, 50).get("p")

    assert (found and found.since_ms) == since_ms


@pytest.mark.parametrize(
    ("share_milli", "percent", "is_idle"),
    [
        (40, 0, True),
        (40, 1, False),
        (40, 4, False),
        (500, 2, True),
        (500, 3, False),
        (0, 1, True),
        (0, 2, False),
    ],
)
def test_a_pod_is_idle_by_the_part_of_its_own_share_that_it_uses(
    share_milli: int, percent: int, is_idle: bool
) -> None:
    """By hand, below 5 %: 1 of 4 % is 25 %; 2 of 50 % are 4 %, 3 are 6 %. A pod that has memory alone of its
    card, a quarter of it (250 thousandths), uses 4 % of that at 1 %, and 8 % at 2 %."""
    card = {"uuid": "A", "index": 0, "share_milli": share_milli, "memory_mib": 10}
    devices = json.dumps({"version": 1, "containers": {"main": [card]}})
    look = UsageSample(0, (("p", (CardSample("A", percent, 10, exclusive=True),)),), ())
    sessions = {"p": MeasuredSession("p", T0, None, devices, share_milli or 250)}

    assert ("p" in idleness.follow_idle({}, [(T0, look)], sessions, 50)) is is_idle


# Pods past their declared time: ten minutes from T0, and 30 seconds of grace

DECLARED = "gpuHours: 100\nreserve: declared\nrequireDuration: true\novertime: "
OVER, MAY_END = T0 + 10 * MINUTE, T0 + 10 * MINUTE + 30 * SECOND


@pytest.mark.parametrize(
    ("budget", "now_ms", "expected"),
    [
        ("evict", OVER - 1, None),
        ("evict", OVER, (True, False, False)),
        ("evict", MAY_END - 1, (True, False, False)),
        ("evict", MAY_END, (True, True, False)),
        ("evict", MAY_END + HOUR - 1, (True, True, False)),
        ("evict", MAY_END + HOUR, (True, True, True)),
        ("warn", MAY_END, (False, False, False)),
        ("evict\nmode: observe", MAY_END, None),  # it was created without enforcement
    ],
)
def test_when_a_pod_past_its_declared_time_is_evicted_and_deleted(
    budget: str, now_ms: int, expected: tuple[bool, bool, bool] | None
) -> None:
    history = budgets({"team-a": DECLARED + budget, "_settings": "pdbGrace: 1h"})

    found = [(each.is_ended, each.is_due, each.deletes) for each in declared.due([POD], history, now_ms)]

    assert found == ([] if expected is None else [expected])


def test_a_pod_that_is_over_or_leaving_is_not_past_its_declared_time() -> None:
    history, hold = budgets({"team-a": f"{DECLARED}evict"}), POD.hold

    for other in (replace(hold, over=True, ended_ms=T0 + MINUTE), replace(hold, deletion_ms=T0 + MINUTE)):
        assert declared.due([replace(POD, hold=other)], history, T0 + HOUR) == []
    (found,) = declared.due([replace(POD, others_ended=True)], history, T0 + HOUR)
    assert not found.is_due


# What the API server's answer to an eviction means

PDB_429 = {"details": {"causes": [{"reason": "DisruptionBudget"}]}}
ANOTHER_409 = {
    "message": "Operation cannot be fulfilled on Pod: Precondition failed: UID in precondition: a, UID in"
    " object meta: b"
}


@pytest.mark.parametrize(
    ("reply", "result"),
    [
        (Answered(201, {}), "evicted"),
        (Answered(429, PDB_429), "protected"),
        (Answered(429, {"message": "too many requests"}), "refused"),
        (Answered(500, {"message": "This pod has more than one PodDisruptionBudget"}), "protected"),
        (Answered(500, {"message": "broken"}), "unclear"),
        (Answered(404, {"message": 'pods "p" not found'}), "gone"),
        (Answered(409, ANOTHER_409), "gone"),
        (Answered(409, {"message": "the object has been modified"}), "refused"),
        (Answered(403, {"message": "forbidden"}), "refused"),
        (Answered(410, {"message": "expired"}), "refused"),
        (Answered(503, {"message": "away"}), "unclear"),
        (Unsent("no connection"), "unclear"),
    ],
)
def test_what_the_answer_to_an_eviction_means(reply: Answered | Unsent, result: str) -> None:
    assert result_of(reply)[0] == result


def test_which_refusals_are_for_good() -> None:
    """Not where the caller is not known, the object is missing, or the API server is busy or broken."""
    statuses = (200, 400, 401, 403, 404, 408, 409, 410, 413, 422, 429, 500, 503)

    assert [status for status in statuses if is_refused_for_good(status)] == [400, 403, 410, 413, 422]


def budgets(texts: dict[str, str]) -> History:
    return history_of([BudgetEntry(key, text, T0) for key, text in texts.items()])
