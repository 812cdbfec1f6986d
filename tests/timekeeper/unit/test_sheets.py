"""Answers of the REST API as Tables."""

import itertools
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timekeeper.api.create_app import ROUTES
from timekeeper.api.sheets import budgets, cluster, decisions, sessions, simulation, usage
from timekeeper.api.sheets.sheet import Sheet
from timekeeper.core import texts
from timekeeper.core.budgets.sentences import beyond_its_group, left_sentence
from timekeeper.core.cluster_map import STALE_MS
from timekeeper.core.texts import NOT_PLACED

HOUR = 3_600_000_000
MIDNIGHT = 1_795_219_200_000  # 2026-11-21T00:00:00Z, a second count by `date -d`
Json = dict[str, Any]


def cells(sheet: Sheet, answer: Json, now_ms: int = MIDNIGHT) -> list[Json]:
    """The rows of the Table by the columns' keys."""
    table = sheet.table(answer, now_ms)
    keys = [each["key"] for each in table["columnDefinitions"]]
    return [dict(zip(keys, row["cells"], strict=True)) for row in table["rows"]]


def titles(sheet: Sheet, answer: Json) -> list[str]:
    """The headings of the Table."""
    return [each["name"] for each in sheet.table(answer, MIDNIGHT)["columnDefinitions"]]


def budget(**changed: Any) -> Json:
    """A budget as ``GET /v1/budgets/team-a`` gives it."""
    return {
        **{"namespace": "team-a", "standing": "IN_BUDGET", "onExhausted": "reclaim", "entry": None},
        **{"mode": "enforce", "modeFrom": "cluster", "placement": "on", "period": {"to": MIDNIGHT}},
        **{"granted": 10 * HOUR, "posted": 2 * HOUR, "pending": HOUR // 2, "reserved": HOUR // 100},
        **{"remaining": 749 * HOUR // 100, "exhaustedAt": None, "group": None, "protect": None},
        **{"received": None, "maxGPUsMilli": None, "maxGPUsPerPodMilli": None, "request": None},
        "deciding": {"subject": "team-a", "remaining": 749 * HOUR // 100, "to": MIDNIGHT},
        **changed,
    }


def test_a_budget_s_table_has_what_decides_and_the_wide_one_all() -> None:
    columns = budgets.BUDGETS.table(listed(budget()), MIDNIGHT)["columnDefinitions"]

    narrow = [column["name"] for column in columns if not column["priority"]]
    assert narrow == ["Namespace", "Standing", "Granted", "Used", "Left", "Of", "Gone"]
    assert len(columns) == 17


UNLIMITED: Json = {"subject": "team-a", "remaining": None, "to": None}
OF_LAB: Json = {"subject": "_group.lab", "remaining": 34 * HOUR // 10, "to": MIDNIGHT}


def listed(*found: Json) -> Json:
    """An answer of ``GET /v1/budgets``."""
    return {"budgets": [*found], "groups": []}


@pytest.mark.parametrize("route", [each for each in ROUTES if each.sheet], ids=lambda route: route.path)
def test_every_column_has_a_name_of_its_own_and_says_what_it_means(route: Any) -> None:
    for sheet in (route.sheet, *route.sheets.values()):
        keys = [each.key for each in sheet.columns]

        assert len(set(keys)) == len(keys)
        assert [each.key for each in sheet.columns if not each.about or each.about.endswith(".")] == []
        assert [each.key for each in sheet.columns if each.title[:1] != each.title[:1].upper()] == []


def test_a_table_is_one_of_kubernetes_with_the_next_page_and_its_sentences() -> None:
    answer = {"grants": [], "next": "x"}
    grant = {"subject": "a", "gpuHours": "-1", "kind": "manual", "actor": "x", "reason": "y", "created": 0}

    table = budgets.GRANTS.table(answer | {"grants": [grant]}, MIDNIGHT)

    assert (table["kind"], table["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    assert table["metadata"] == {"continue": "x"}
    assert table["columnDefinitions"][0] == {
        **{"name": "Created", "type": "string", "format": "date-time", "key": "created", "priority": 0},
        "description": "when it was granted",
    }
    assert table["rows"] == [{"cells": ["1970-01-01 00:00Z", "a", "-1", "manual", "x", "y"]}]
    assert (table["empty"], table["notes"], table["warnings"]) == ("there are no grants", [], [])


def test_a_budget_is_a_row_in_gpu_hours() -> None:
    (row,) = cells(budgets.BUDGET, budget())

    assert (row["granted"], row["used"], row["reserved"], row["remaining"], row["percent"]) == (
        *("10.00", "2.50", "0.01", "7.49", "25%"),
    )
    assert (row["left"], row["leftOf"]) == ("7.49", "")
    assert (row["periodEnd"], row["exhaustedAt"], row["group"]) == ("2026-11-21 00:00Z", "", "")


def test_a_namespace_over_budget_and_one_without_a_limit_say_so() -> None:
    over = budget(standing="OVER_BUDGET", exhaustedAt=MIDNIGHT, group={"name": "_group.x"})
    none = {"granted": None, "remaining": None, "period": {"to": None}, "deciding": UNLIMITED}
    unlimited = budget(standing="UNLIMITED", **none)

    rows = cells(budgets.BUDGETS, listed(over, unlimited))

    assert [row["exhaustedAt"] for row in rows] == ["exhausted", ""]
    assert [row["granted"] for row in rows] == ["10.00", "unlimited"]
    assert [(row["group"], row["onExhausted"], row["percent"]) for row in rows] == [
        *(("_group.x", "reclaim", "25%"), ("", "", ""))
    ]


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({}, "; 7.49 of its own"),
        ({"granted": None, "remaining": None}, "; of its own it has no limit"),
    ],
)
def test_what_is_left_is_what_the_group_leaves_and_a_sentence_says_so(own: Json, said: str) -> None:
    member = budget(deciding=OF_LAB, group={"name": "lab"}, **own)

    (row,) = cells(budgets.BUDGETS, listed(member))

    assert (row["left"], row["leftOf"]) == ("3.40", "group lab")
    assert budgets.BUDGET.table(member, MIDNIGHT)["notes"] == [
        f"team-a: 3.40 GPU-hours of group lab are left until 2026-11-21 00:00Z{said}."
    ]


def test_only_a_namespace_without_budget_group_and_use_may_be_misspelled() -> None:
    nothing: Json = {"granted": None, "posted": 0, "pending": 0}
    answers = [
        budget(namespace="typo", **nothing),
        budget(namespace="unused", posted=0, pending=0),
        budget(namespace="member", group={"name": "_group.x"}, **nothing),
        budget(namespace="capped", entry="capped", **nothing),
        *(budget(namespace=spent, **nothing | {spent: 1}) for spent in ("posted", "pending")),
    ]

    tables = {each["namespace"]: budgets.BUDGET.table(each, MIDNIGHT) for each in answers}

    assert [name for name, table in tables.items() if not table["rows"]] == ["typo"]


def test_a_budget_has_its_mode_and_what_reclaim_comes_to_without_placement() -> None:
    found = [
        budget(mode="observe", modeFrom="label", placement="off"),
        budget(namespace="_group.lab", mode=None, modeFrom=None),
    ]

    rows = cells(budgets.BUDGETS, listed(*found))

    assert [each["mode"] for each in rows] == ["observe (label)", ""]
    assert [each["onExhausted"] for each in rows] == ["reclaim, as deprioritize: placement is off", "reclaim"]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, []),
        ({"maxGPUsMilli": 0}, ["team-a takes no new GPU pods, for maxGPUs is 0; running ones go on."]),
        ({"maxGPUsMilli": 4_500}, ["team-a may hold at most 4.5 GPUs at a time."]),
        (
            {"maxGPUsMilli": 4_000, "maxGPUsPerPodMilli": 1_000},
            ["team-a may hold at most 4 GPUs at a time, and at most 1 a pod."],
        ),
        (
            {"protect": {"cardsMilli": 1_500, "amount": None, "used": 3 * HOUR, "rateMilli": 500}},
            [
                "team-a protects pods up to 1.5 cards at one time: those that it selects have used 3.00"
                " GPU-hours in this period; their rate is 0.5."
            ],
        ),
        (
            {"mode": "observe"},
            [
                "In mode observe pods are charged, users are warned, and no pod is refused, demoted or"
                " changed."
            ],
        ),
        (
            {"received": {"amount": HOUR, "eachPeriod": 0}},
            [
                "team-a has 10.00 GPU-hours of this period: 9.00 by its own budget and grants, and 1.00 that"
                " its group passed on beside them; what it uses counts in its group's budget too."
            ],
        ),
    ],
)
def test_what_else_holds_for_a_budget_is_a_sentence_below(changed: Json, said: list[str]) -> None:
    assert budgets.BUDGETS.table(listed(budget(**changed)), MIDNIGHT)["notes"] == said


def charge(**fields: Any) -> Json:
    """An answer of ``GET /v1/usage`` with one row."""
    return {"rows": [{"namespace": "a", "posted": HOUR, "pending": 0, "amount": HOUR, **fields}]}


def test_usage_shows_what_it_was_grouped_by_and_how_busy_the_cards_were() -> None:
    measured = {"requested": 2 * HOUR, "measured": HOUR, "used": HOUR // 4, "usedBy": "node"}
    answer = {**charge(pod="p", uid="u", **measured, unused=3 * HOUR // 4), "from": MIDNIGHT}
    held = "Requested, unweighted"

    assert titles(usage.USAGE, answer) == ["Namespace", "Pod", "UID", "GPU-hours", "Busy", held]
    assert [*cells(usage.USAGE, answer)[0].values()] == ["a", "p", "u", "1.00", "25%", "2.00"]
    assert titles(usage.USAGE, {"rows": []}) == ["GPU-hours"]


def test_use_by_label_has_a_row_for_pods_without_it() -> None:
    answer = {"rows": [*charge(labels={"a/team": ""})["rows"], *charge(labels={"a/team": "vision"})["rows"]]}

    assert titles(usage.USAGE, answer) == ["Namespace", "label:a/team", "GPU-hours"]
    assert [row["label:a/team"] for row in cells(usage.USAGE, answer)] == [None, "vision"]


@pytest.mark.parametrize(
    ("step", "names"), [("day", ["2026-11-21", "2026-11-22"]), ("month", ["2026-11", "2026-11"])]
)
def test_rows_of_the_calendar_have_its_names_and_in_a_file_their_bounds_too(
    step: str, names: list[str]
) -> None:
    """The last one runs, so its end is not the calendar's."""
    bounds = [MIDNIGHT - 9 * 3_600_000, MIDNIGHT + 15 * 3_600_000, MIDNIGHT + 16 * 3_600_000]
    rows = [
        {**charge()["rows"][0], "from": at, "to": to, "step": name}
        for (at, to), name in zip(itertools.pairwise(bounds), names, strict=True)
    ]
    table, exact = (
        usage.USAGE.table({"rows": rows}, MIDNIGHT, ZoneInfo("Asia/Tokyo"), step, is_exact)
        for is_exact in (False, True)
    )

    assert [column["name"] for column in table["columnDefinitions"]][:2] == [step.capitalize(), "Namespace"]
    assert [row["cells"][0] for row in table["rows"]] == names
    assert [column["key"] for column in exact["columnDefinitions"]][:3] == ["from", "to", "step"]
    assert exact["rows"][1]["cells"][:3] == [
        "2026-11-22T00:00:00+09:00",
        "2026-11-22T01:00:00+09:00",
        names[1],
    ]


def exact_cells(sheet: Sheet, answer: Json, now_ms: int = MIDNIGHT) -> list[Json]:
    """The rows for a file."""
    table = sheet.table(answer, now_ms, is_exact=True)
    keys = [each["key"] for each in table["columnDefinitions"]]
    return [dict(zip(keys, row["cells"], strict=True)) for row in table["rows"]]


def test_a_file_has_durations_in_seconds_whole_lists_and_shares_as_numbers() -> None:
    pods = [{"namespace": "a", "name": f"p{at}", "held": "bound"} for at in range(6)]
    used = CARD | {"used_share_milli": 1, "used_memory_mib": 4000, "pods": pods, "more_pods": 3}
    nodes = [{"name": "n", "closed": "", "cards": [used]}, {"name": "bare", "closed": "", "cards": []}]

    card, bare = exact_cells(cluster.MAP, {"nodes": nodes, "posted": MIDNIGHT})
    (held,) = exact_cells(sessions.SESSIONS, {"sessions": [session(bound=MIDNIGHT - 61_500)]})

    assert (card["compute"], card["memory"], bare["compute"]) == ("0.1", "25", "")
    assert card["pods"] == "a/p0, a/p1, a/p2, a/p3, a/p4, a/p5 and 3 more"
    assert (held["age"], held["bound"]) == ("61.5", "2026-11-20T23:58:58.500Z")


def test_an_unlimited_budget_of_a_file_has_no_number() -> None:
    (row,) = exact_cells(budgets.BUDGETS, listed(budget(granted=None, posted=1, pending=0)))

    assert (row["granted"], row["used"], row["percent"]) == ("unlimited", "0.000000000278", "")


@pytest.mark.parametrize("rows", [499, 500])
def test_a_life_says_where_it_is_cut(rows: int) -> None:
    charges = [{"claim": "c", "bound": at, "sentence": "Charged."} for at in range(rows)]
    life: Json = {"subject": "claim/c", "namespace": "a", "steps": [], "charges": charges, "waitsFor": []}
    life |= {"budget": "It has a budget.", "received": "", "mode": "", "protected": [], "request": None}

    assert decisions.LIFE.table(life, MIDNIGHT)["warnings"] == [
        "Only its newest 500 decisions and charges are read; decisions and usage have all."
    ] * (rows == 500)


def test_a_table_s_cells_and_sentences_have_the_times_of_the_zone() -> None:
    step = {
        "last": MIDNIGHT,
        "pod": "p",
        "kind": "refused",
        "count": 3,
        "first": MIDNIGHT - 3_600_000,
        "sentence": "Refused: a.",
    }
    life: Json = {"subject": "Pod/p", "namespace": "a", "steps": [step], "charges": [], "waitsFor": []}
    life |= {
        "budget": "Until 2026-11-30T15:00:00Z.",
        "received": "",
        "mode": "",
        "protected": [],
        "request": None,
    }

    rows = decisions.LIFE.table(life, MIDNIGHT, ZoneInfo("Asia/Tokyo"))["rows"]

    assert [row["cells"] for row in rows] == [
        ["2026-11-21 09:00:00+09:00", "Refused: a. (3 times since 2026-11-21 08:00+09:00)"],
        ["now", "Until 2026-12-01 00:00:00+09:00."],
    ]


def test_a_correction_is_of_the_month_of_the_zone() -> None:
    raw = {"created": MIDNIGHT, "namespace": "a", "pod": "", "gpuHours": "-1", "actor": "x", "reason": "y"}
    at_ms = 1_793_487_600_000  # 2026-11-01 00:00 in Berlin

    table = usage.CORRECTIONS.table(
        {"corrections": [{**raw, "at": at_ms}]}, MIDNIGHT, ZoneInfo("Europe/Berlin")
    )

    assert table["rows"][0]["cells"][4] == "2026-11"


@pytest.mark.parametrize("is_exact", [False, True])
@pytest.mark.parametrize(
    ("zone", "last"),  # the last millisecond of October there, by hand
    [("America/Los_Angeles", 1_793_516_399_999), ("Pacific/Kiritimati", 1_793_440_799_999)],
)
def test_a_correction_in_a_file_is_of_the_month_that_the_zone_cut(
    is_exact: bool, zone: str, last: int
) -> None:
    raw = {"created": MIDNIGHT, "namespace": "a", "pod": "", "gpuHours": "-1", "actor": "x", "reason": "y"}
    answer = {"corrections": [{**raw, "at": at} for at in (last, last + 1)]}

    table = usage.CORRECTIONS.table(answer, MIDNIGHT, ZoneInfo(zone), is_exact=is_exact)

    assert [row["cells"][4] for row in table["rows"]] == ["2026-10", "2026-11"]
    written = datetime.fromtimestamp(MIDNIGHT // 1000, ZoneInfo(zone)).isoformat()
    assert (table["rows"][0]["cells"][0] == written) is is_exact


def session(**changed: Any) -> Json:
    """A session as the API gives it."""
    raw = {"uid": "u", "namespace": "a", "pod": "p", "owner": "", "node": "n", "models": "T4"}
    held = {"cards": ["x", "y"], "devices": [], "kind": "pod", "rateMilli": 1250, "amount": HOUR}
    times = {"ended": None, "vanished": None, "bound": MIDNIGHT, "state": "open", "admittedInBudget": None}
    return {**raw, **held, **times, **changed}


def test_a_session_says_what_it_holds_since_when_and_what_it_cost() -> None:
    (row,) = cells(sessions.SESSIONS, {"sessions": [session()]}, MIDNIGHT + 3 * 3_600_000 + 60_000)

    assert (row["cards"], row["gpus"], row["age"], row["gpuHours"]) == ("2", "1.25", "3h1m", "1.00")


@pytest.mark.parametrize(("admitted", "shown"), [(True, "in budget"), (False, "over budget"), (None, "")])
def test_a_session_says_whether_its_pod_was_admitted_in_budget(admitted: bool | None, shown: str) -> None:
    (row,) = cells(sessions.SESSIONS, {"sessions": [session(admittedInBudget=admitted)]})

    assert row["admitted"] == shown


def test_a_claim_stands_beside_pods_with_its_devices() -> None:
    devices = [{"pool": "n", "device": f"gpu-{n}", "share": "s" * n, "admin": n > 1} for n in range(3)]
    claim = session(uid="c:claim:1", pod="c", cards=[], kind="claim", devices=devices)
    alone, both = {"sessions": [session()]}, {"sessions": [session(), claim]}

    assert [(row["pod"], row["cards"], row["devices"]) for row in cells(sessions.SESSIONS, both)] == [
        ("p", "2", ""),
        ("claim/c", "3", "n/gpu-0,n/gpu-1:share,n/gpu-2:admin"),
    ]
    assert titles(sessions.SESSIONS, both) == [*titles(sessions.SESSIONS, alone), "Devices"]


CARD = {"uuid": "GPU-1", "index": 0, "model": "T4", "memory_mib": 16_000, "healthy": True, "cordoned": False}


def test_a_card_is_a_row_with_bars_and_the_pods_on_it() -> None:
    pods = [{"namespace": "a", "name": f"p{at}", "held": "bound" if at else "assumed"} for at in range(6)]
    used = CARD | {"used_share_milli": 501, "used_memory_mib": 4000, "pods": pods, "more_pods": 3}
    nodes = [
        {"name": "n", "closed": "", "cards": [used | {"healthy": False}], "unnamed": 2},
        {"name": "shut", "closed": "two plugins", "cards": []},
        {"name": "bare", "closed": "", "cards": [], "undescribed": "2 of nvidia.com/gpu"},
    ]

    first, unnamed, shut, bare = cells(cluster.MAP, {"nodes": nodes, "posted": MIDNIGHT})

    assert (first["compute"], first["memory"], first["memoryMiB"]) == (
        *("██████····  50%", "███·······  25%", "4000/16000"),
    )
    assert first["pods"] == "a/p0 (assumed), a/p1, a/p2, a/p3 and 5 more"
    assert first["state"] == "unhealthy"
    assert (shut["card"], shut["compute"], shut["state"]) == ("", "", "closed: two plugins")
    assert "2 of nvidia.com/gpu" in bare["state"]
    assert unnamed["state"].startswith("2 ")


@pytest.mark.parametrize(
    ("used", "text"), [(0, "··········   0%"), (1, "█·········   0%"), (1200, "██████████ 120%")]
)
def test_bars(used: int, text: str) -> None:
    assert cluster.bar(used, 1000) == text


def waiting(*pods: Json, **fields: Any) -> Json:
    """An answer of ``GET /v1/waiting``."""
    return {"pods": [*pods], "posted": MIDNIGHT, "total": len(pods), "placement": "on", **fields}


def test_a_waiting_pod_says_since_when_and_why_it_waits() -> None:
    raw: Json = {"namespace": "a", "name": "p", "priority": 5, "standing": "IN_BUDGET", "created": MIDNIGHT}
    raw |= {"reason": "no card has 50 percent free"}
    states = ("refused", "not-asked", "gated", "reserved", "assumed", "of-a-later-release")
    answer = waiting(*(raw | {"state": state} for state in states))

    rows = cells(cluster.WAITING, answer, MIDNIGHT + 90_000)

    assert (rows[0]["age"], rows[0]["priority"]) == ("1m30s", 5)
    assert [row["state"] for row in rows] == [
        *("no cards fit", "no node fits", "held by a gate", "cards reserved", "being bound"),
        "of-a-later-release",
    ]


@pytest.mark.parametrize(
    ("answer", "warning"),
    [
        (waiting(), []),
        (
            waiting(total=4),
            ["0 of 4 waiting pods are listed: kubectl bursar explain POD says why another one waits."],
        ),
        (
            waiting(total=None),
            ["Not all waiting pods are listed: kubectl bursar explain POD says why another one waits."],
        ),
        (
            waiting(posted=None, total=None),
            [
                "Nothing is known: no extender has posted nodes or waiting pods. Where the ledger runs alone"
                " there is none, and kubectl bursar top lists who holds cards; else its flag is"
                " --timekeeper-url."
            ],
        ),
        (waiting(posted=MIDNIGHT - STALE_MS), []),
        (waiting(posted=MIDNIGHT - 90_000), ["This is old: the extender posted last 1m30s ago."]),
        (waiting(posted=None, total=None, placement="off"), [f"{NOT_PLACED}."]),
    ],
)
def test_it_is_said_what_is_not_known_of_waiting_pods(answer: Json, warning: list[str]) -> None:
    assert cluster.WAITING.table(answer, MIDNIGHT)["warnings"] == warning


def decided(pod: str, kind: str, sentence: str, last: int, count: int = 1, **figures: str) -> Json:
    at = {"last": MIDNIGHT + last, "first": MIDNIGHT - 3_600_000, "count": count}
    return {**at, "pod": pod, "kind": kind, "sentence": sentence, "figures": figures}


def charged(pod: str, hours: float, more: str = "", node: str = "n1", claim: str = "") -> Json:
    sentence = f"Charged {hours} GPU-hours: held cards of node {node}, at the rate 0.5.{more}"
    amount = int(hours * 3_600_000_000)
    return {
        "bound": MIDNIGHT,
        "pod": pod,
        "claim": claim,
        "node": node,
        "amount": amount,
        "sentence": sentence,
    }


def life(*steps: Json, **more: object) -> Json:
    answer = {
        "steps": [*steps],
        "charges": [],
        "waitsFor": [],
        "budget": "Spent.",
        "received": "",
        "mode": "",
    }
    return answer | {"namespace": "team-a", "subject": "Pod/a", "protected": [], "request": None} | more


def test_the_life_of_a_pod_begins_with_what_it_waits_for_and_goes_on_oldest_first() -> None:
    steps = decided("a", "refused", "Refused: a.", 0, 3), decided("a", "placed", "Placed.", 0)
    answer = life(*steps, charges=[charged("a", 1)], waitsFor=["A grant."])

    assert titles(decisions.LIFE, answer) == ["When", "What"]
    assert titles(decisions.LIFE, answer | {"subject": "Job/train"}) == ["When", "Pod", "What"]
    assert [tuple(row.values()) for row in cells(decisions.LIFE, answer)] == [
        ("now", "A grant."),
        ("2026-11-21 00:00:00Z", "Refused: a. (3 times since 2026-11-20 23:00Z)"),
        ("2026-11-21 00:00:00Z", "Placed."),
        ("2026-11-21 00:00:00Z", charged("a", 1)["sentence"]),
        ("now", "Spent."),
    ]
    unknown = life(waitsFor=[NOT_PLACED], mode="In mode meter")
    assert [row["what"] for row in cells(decisions.LIFE, unknown)] == [
        "Nothing is recorded about Pod/a in team-a: see whether name and namespace are right.",
        *(NOT_PLACED, "Spent.", "In mode meter"),
    ]
    spent = cells(decisions.LIFE, answer | {"waitsFor": ["Spent."]})
    assert [row["what"] for row in spent].count("Spent.") == 1


def test_of_several_pods_each_thing_is_shown_once() -> None:
    """What one pod alone has is shown of that pod."""
    free = " The 60 s before that are not charged."
    steps = [decided(pod, "gang", "Gang t waits.", at) for at, pod in enumerate("abc")]
    steps += [decided("a", "gang", "Gang t fits.", 3), decided("a", "gang", "Gang t waits.", 9_000)]
    nodes = {"a": "n", "b": "m", "c": "n"}
    steps += [decided(pod, "placed", f"On {node}.", 5_000, node=node) for pod, node in nodes.items()]
    charges = [charged("a", 0.1), charged("b", 0.2, free), charged("c", 0.30004, free, node="n2")]
    answer = life(*steps, charges=[*charges, charged("c", 1, claim="d")], subject="JobSet/t")

    assert [tuple(row.values()) for row in cells(decisions.LIFE, answer)] == [
        ("2026-11-21 00:00:00Z", "a", "Gang t fits."),
        ("2026-11-21 00:00:05Z", "a and 2 more", "3 pods were placed on m, n"),
        ("2026-11-21 00:00:09Z", "a and 2 more", "Gang t waits. (4 times since 2026-11-20 23:00Z)"),
        ("2026-11-21 00:00:00Z", "claim/d", charged("c", 1)["sentence"]),
        ("2026-11-21 00:00:00Z", "a", charges[0]["sentence"]),
        (
            "2026-11-21 00:00:00Z",
            "b and 1 more",
            f"Charged 0.5 GPU-hours together: 2 pods held cards of n1, n2.{free}",
        ),
        ("now", "", "Spent."),
    ]


def test_a_held_pod_says_its_place_and_when_it_is_released_at_the_earliest() -> None:
    raw = {"namespace": "a", "pod": "p", "waitsFor": "budget", "ahead": 2, "priority": 0, "rateMilli": 500}
    raw |= {"created": MIDNIGHT - 60_000, "gang": "", "pods": 3, "earliest": MIDNIGHT}

    soon, never = cells(sessions.HELD, {"held": [raw, {**raw, "gang": "g", "earliest": None}]})

    assert (soon["pod"], soon["ahead"], soon["gpus"], soon["age"]) == ("p", 2, "0.5", "1m0s")
    assert soon["earliest"] == "2026-11-21 00:00Z"
    assert (never["pod"], never["earliest"]) == ("gang g (3 pods)", "not by this budget")


def simulated_pod(name: str, **fields: Any) -> Json:
    """A pod of a simulation's answer."""
    pod = {"name": name, "outcome": "fits", "refusal": "", "held": "", "protected": False, "nodesThatFit": 1}
    place = {"node": "gpu-1", "reasons": []}
    rest = {"hasUnreadConstraints": False, "cost": {"rateMilli": 2000}}
    return {**pod, **place, **rest, **fields}


def simulation_of(*pods: Json, **fields: Any) -> Json:
    """A simulation's answer: 48 hours a day, of which 100.5 are left."""
    after = {"namespace": "team-a", "to": None, "remaining": 100_500 * HOUR // 1000, "now": {"goneAt": None}}
    cost = {"rateMilli": 2000, "perDay": 48 * HOUR, "price": "96", "currency": "EUR"}
    return {"pods": pods, "cost": cost, "needs": None, "after": after, "note": "", **fields}


def test_a_simulation_shows_where_pods_fit() -> None:
    answer = simulation_of(
        simulated_pod("one"),
        simulated_pod("two", outcome="unknown", node=""),
        simulated_pod("three", outcome="waits", reasons=[{"reason": "full", "nodes": 3}], held="budget"),
    )

    assert [tuple(row.values()) for row in cells(simulation.SIMULATED, answer)] == [
        ("one", "fits", "gpu-1", "1 node fits"),
        ("two", "unknown", "", "it is not known where it would run"),
        ("three", "held, then waits", "gpu-1", "it is held until its budget pays for it; 3 nodes: full"),
    ]


@pytest.mark.parametrize(
    ("needs", "after", "sentence"),
    [
        (None, {"now": {"goneAt": MIDNIGHT}}, "48 GPU-hours a day; 100.5 are left; they last until {}."),
        (None, {"to": MIDNIGHT}, "48 GPU-hours a day; 100.5 are left until {}; they last until then."),
        (480 * HOUR, {"to": MIDNIGHT}, "480 GPU-hours; 100.5 are left until {}."),
        (480 * HOUR, {"namespace": "_group.lab"}, "480 GPU-hours; 100.5 are left of group lab."),
        (HOUR // 3, {"remaining": -HOUR}, "0.33 GPU-hours; 0 are left."),
        (HOUR, {"remaining": None}, "1 GPU-hours; no budget limits it."),
    ],
)
def test_a_simulation_says_what_is_needed_and_what_is_left(
    needs: int | None, after: Json, sentence: str
) -> None:
    answer = simulation_of(needs=None if needs is None else {"amount": needs})
    answer["after"] |= after

    (said,) = simulation.SIMULATED.table(answer, MIDNIGHT)["notes"]

    assert said == f"Needs {sentence}".format("2026-11-21 00:00Z")


def test_of_pods_that_are_placed_nowhere_a_simulation_does_not_say_what_they_need() -> None:
    answer = simulation_of(cost={"rateMilli": 0})

    assert simulation.SIMULATED.table(answer, MIDNIGHT)["notes"] == []


def test_what_would_have_happened_counts_the_weeks_new_pods_and_says_what_is_not_known() -> None:
    row = {"week": "2026-W47", "from": 0, "namespace": "team-a", "rule": "", "pod": "p", "sentence": "why"}
    row |= {"late": 0, "of": 340}
    rows = [
        row | {"verdict": "refused", "pods": 12, "rule": "host-pid"},
        row | {"verdict": "evicted", "pods": 2},
        row | {"verdict": "unjudged", "pods": 1},
    ]
    answer = {"rows": rows, "enforced": ["team-b"], "notes": ["Exempt users are not known."]}

    assert [(each["verdict"], each["rule"], each["pods"]) for each in cells(decisions.WOULD, answer)] == [
        *(("refused", "host-pid", "12 of 340"), ("evicted", None, "2"), ("not judged", None, "1 of 340"))
    ]
    assert decisions.WOULD.table(answer, MIDNIGHT)["warnings"] == [
        "Not metered now, so nothing is shown: team-b. Enforced ones have decisions (kubectl bursar"
        " decisions); deleted ones have none.",
        "Exempt users are not known.",
    ]


NOW = {"charges": "a", "grantsMade": "b", "prices": "c", "sha256": "d"}
AWAITED = "pod team-a/train on n1 has not ended: kubectl delete pod train"
WAITS = [{"waitsFor": count, "awaited": [AWAITED] * count} for count in (1, 2)]
CLOSED_MS = 1_793_494_800_000  # 2026-11-01 01:00 UTC


def month(state: str, **others: Any) -> Json:
    """The API's answer about October."""
    times = {"from": 1_790_812_800_000, "to": 1_793_491_200_000}
    now = NOW | {"amount": 2 * HOUR, "sessions": 3, "grants": 2}
    return {"month": "2026-10", "state": state, **times, "closed": None, "differs": [], "now": now, **others}


def closed(*changed: str) -> Json:
    """The same, once it is closed, and what changed since."""
    hashes = {name: "other" if name in changed else each for name, each in NOW.items()}
    late = {"postings": len(changed), "amount": HOUR * len(changed)}
    return month("closed", closed={"closed": CLOSED_MS, "hashes": hashes}, differs=list(changed), late=late)


@pytest.mark.parametrize(
    ("answer", "says", "words"),
    [
        (month("future"), "It begins at 2026-10-01", {"not closed"}),
        (month("before"), "The ledger began after it, so it is never closed.", {"not closed"}),
        (month("runs"), "It runs until 2026-11-01", {"not closed"}),
        (
            month("waits", **WAITS[0]),
            "It waits for 1 session that is not settled",
            {"not closed"},
        ),
        (
            month("waits", **WAITS[1]),
            "It waits for 2 sessions that are not settled",
            {"not closed"},
        ),
        (month("ended"), "It has ended; the settler closes it an hour after its end", {"not closed"}),
        (closed(), "It is unchanged since it was closed at 2026-11-01", {"unchanged"}),
        (closed("charges"), "not as they were: charges.", {"changed", "unchanged"}),
    ],
)
def test_a_month_is_told_in_sentences_below_its_hashes(answer: Json, says: str, words: set[str]) -> None:
    first, second, *_ = usage.MONTH.table(answer, MIDNIGHT)["notes"]

    assert first == "2026-10 has 2.00 GPU-hours of 3 sessions, and 2 grants."
    assert says in second
    assert {row["closed"] for row in cells(usage.MONTH, answer)} == words


def test_an_open_month_tells_for_whom_it_waits_and_what_ends_that() -> None:
    told = usage.MONTH.table(month("waits", **WAITS[0]), MIDNIGHT)["notes"]

    assert told[-1] == (
        "For pod team-a/train on n1 has not ended: kubectl delete pod train, once nothing of it runs."
    )


def test_later_proof_is_told_with_its_amount() -> None:
    told = usage.MONTH.table(closed("charges"), MIDNIGHT)["notes"]

    assert told[-1] == "Later proof made 1 correction, together 1.00 GPU-hours."


@pytest.mark.parametrize(
    ("begin", "has_use", "said"),
    [
        (MIDNIGHT + 1, True, ["Measured by the hour: from 2026-11-21 01:00Z."]),
        (MIDNIGHT - 1, True, ["Measured by the hour: from 2026-11-21 00:00Z."]),
        (MIDNIGHT, True, []),
        (MIDNIGHT + 1, False, []),
    ],
)
def test_use_of_a_time_that_begins_within_an_hour_says_from_when_on(
    begin: int, has_use: bool, said: list[str]
) -> None:
    row: Json = {"namespace": "a", "amount": HOUR}
    figures: Json = {"requested": 2 * HOUR, "measured": HOUR, "used": 8 * HOUR, "unused": HOUR // 4}
    answer = {"from": begin, "rows": [{**row, **figures} if has_use else row]}

    table = usage.USAGE.table(answer, begin + 1)

    assert table["notes"] == said
    if has_use:
        assert cells(usage.USAGE, answer)[0]["busy"] == "75%", "of its part, whatever it used of the card"


AMOUNTS = st.one_of(st.integers(-(2**53), 2**53), st.sampled_from([0, 1, 36 * 10**8, 36 * 10**8 + 1]))


@given(st.lists(AMOUNTS, min_size=1, max_size=5), st.sampled_from([None, texts.hours]))
def test_amounts_of_one_sentence_look_the_same_only_where_they_are(
    amounts: list[int], first: Callable[[int], str] | None
) -> None:
    shown = texts.apart(*amounts, first=first)

    for amount, text in zip(amounts, shown, strict=True):
        exact = Decimal(amount) / 3_600_000_000
        assert abs(Decimal(text) - exact) <= max(abs(exact) / 1_000, Decimal("0.005") if first else 0)
        assert [text == other for other in shown] == [amount == other for other in amounts]


def test_what_a_group_passes_on_is_told_apart_from_what_its_namespace_has() -> None:
    hour = 3_600_000_000
    deciding = {"remaining": hour, "to": None, "subject": "_group.lab"}
    budget = {"namespace": "a", "remaining": hour + 1, "deciding": deciding}

    assert left_sentence(budget) == "1 GPU-hours of group lab are left; 1.0000000003 of its own"
    assert "has 1.0000000003 GPU-hours left of its own, and its group lab has 1:" in beyond_its_group(
        "a", hour + 1, "lab", hour
    )
    assert texts.received(4 * hour, 2 * hour + 1, 0).startswith(
        "4 GPU-hours of this period: 1.9999999997 by its own budget and grants, and 2.0000000003 that its"
    )


def of_run(owner: str, pod: str, number: int, **changed: Any) -> Json:
    """A decision as ``GET /v1/decisions`` gives it."""
    return {
        **{
            "id": number,
            "namespace": "team-a",
            "owner": owner,
            "pod": pod,
            "generateName": "",
            "kind": "held",
        },
        **{"last": MIDNIGHT - number * 60_000, "count": 1, "sentence": "Held for its budget."},
        **changed,
    }


def test_the_runs_of_a_cron_job_are_one_row_where_the_same_was_decided() -> None:
    made = [
        of_run("Job/nightly-29920323", "nightly-29920323-x", 1),
        of_run("Job/other", "other-x", 2),
        of_run("Job/nightly-29920322", "nightly-29920322-x", 3, count=2),
        of_run("Job/nightly-29920322", "nightly-29920322-x", 4, kind="released", sentence="Released."),
        of_run("Job/nightly-29920321", "nightly-29920321-x", 5),
        of_run("Job/nightly-29920321", "nightly-29920321-x", 6, namespace="team-b"),
        of_run("Job/nightly-20261101", "by-hand-x", 7),
        of_run("", "alone", 8),
    ]

    rows = cells(decisions.DECISIONS, {"decisions": made})

    assert [(row["namespace"], row["subject"], row["kind"], row["count"]) for row in rows] == [
        ("team-a", "CronJob/nightly", "held", 4),
        ("team-a", "other-x", "held", 1),
        ("team-a", "nightly-29920322-x", "released", 1),
        ("team-b", "nightly-29920321-x", "held", 1),
        ("team-a", "by-hand-x", "held", 1),
        ("team-a", "alone", "held", 1),
    ]
    assert rows[0]["when"] == cells(decisions.DECISIONS, {"decisions": made[:1]})[0]["when"]
