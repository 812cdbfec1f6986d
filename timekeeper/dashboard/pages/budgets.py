"""All budgets at a glance, and the groups with their members."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from timekeeper.core import texts
from timekeeper.core.budgets.policy import GROUP
from timekeeper.core.budgets.sentences import beyond_its_group
from timekeeper.core.findings import CATALOGUE, broken_sentences
from timekeeper.dashboard.api_caller import ApiRefusedError, Json
from timekeeper.dashboard.pages.accounts import (
    PassingOnForm,
    account_values,
    empty_form,
    with_stranger,
)
from timekeeper.dashboard.pages.cluster import cards_over_time
from timekeeper.dashboard.visits import PageContent, Visit, part, segment

ROWS = 100  # in one page of the table
_PERIODS = 3
OVER, NEAR, EARLY, FINE, UNLIMITED = "over", "near", "early", "fine", "unlimited"
_ORDER = (OVER, NEAR, EARLY, FINE, UNLIMITED)


@dataclass(frozen=True, slots=True)
class BudgetTotals:
    """How many accounts are in which state."""

    over: int
    near: int
    accounts: int


def overview(visit: Visit) -> PageContent:
    """Every namespace with a budget, or those of a figure above the list; those that need attention first,
    unless the visitor chose another order."""
    answer = visit.api.recent("/v1/budgets")
    found_wrong = part(lambda: visit.api.get("/v1/findings")).answer or {"findings": ()}
    wanted = (visit.text("find") or "").lower()
    periods = by_period(answer["budgets"])
    chosen = _chosen(visit, answer, periods)
    found = ordered([budget for budget in chosen if wanted in budget["namespace"]], visit.text("sort") or "")
    rows, first, before, after = visit.page_of(found, ROWS)
    values = {
        "use": _use(visit) if not answer["budgets"] else (),
        **cards_over_time(visit),
        **{"rows": rows, "found": len(found), "first": first, "before": before, "after": after},
        "totals": totals(answer["budgets"]),
        "periods": periods[:_PERIODS],
        "others": periods[_PERIODS:],
        "has_groups": bool(answer["groups"]),
        "is_chosen": bool(visit.text("state") or visit.text("period")),
        "find": wanted,
        "notes": [
            *(said[:1].upper() + said[1:] for said in broken_sentences(answer)),
            *(_note(finding) for finding in found_wrong["findings"] if finding["level"] != "ok"),
        ],
    }
    return PageContent("budgets.html", values)


_NAMES = "{node", "{namespace", "{classes", "{over", "{default"  # figures that are names of objects


def _note(finding: Json) -> str:
    """Its sentence; one that begins with the name of an object begins with that as it is."""
    known, said = CATALOGUE.get(finding["code"]), str(finding["sentence"])
    return said if known is not None and known.sentence.startswith(_NAMES) else said[:1].upper() + said[1:]


def _use(visit: Visit) -> list[Json]:
    """What namespaces used this month, the largest first; nothing without the right to read it."""

    asked: Json = {"group": "namespace", "sort": "-gpuHours", "limit": ROWS}
    used = part(lambda: visit.api.recent("/v1/usage", **asked)).answer
    return list((used or {}).get("rows", ()))


def groups(visit: Visit) -> PageContent:
    """Every group with its account and members."""
    answer = visit.api.recent("/v1/budgets")
    members = _members(answer["budgets"])
    rows = [{**budget, "members": members.get(_name(budget), [])} for budget in answer["groups"]]
    return PageContent("groups.html", {"rows": ordered(rows, visit.text("sort") or "")})


def group(visit: Visit, group: str, form: PassingOnForm | None = None) -> PageContent:
    """One group: its account over time, what each member used of it in its period, and what it has passed on.
    ``form``: as the visitor has sent it."""
    key = f"_group.{group}"
    budget = visit.api.get(f"/v1/budgets/{segment(key)}")
    listed = part(lambda: visit.api.get("/v1/budgets", group=group))
    grants = part(lambda: visit.api.get(f"/v1/groups/{segment(group)}/grants"))
    begin_ms = max(0, budget["period"]["from"])
    asked = {"namespace": key, "group": "namespace", "from_": begin_ms, "to": max(visit.now_ms, begin_ms + 1)}
    used = part(lambda: visit.api.whole("/v1/usage", "rows", **asked))
    names, receiver = (grants.answer or {}).get("members", ()), visit.text("passed-on") or ""
    accounts = {member["namespace"]: member for member in (listed.answer or {}).get("budgets", ())}
    amounts = {row["namespace"]: row["amount"] for row in (used.answer or {}).get("rows", ())}
    members = [(name, amounts.get(name, 0), accounts.get(name)) for name in {**accounts, **amounts}]
    values = {
        **account_values(visit, key, budget),
        "group": group,
        "is_unknown": texts.is_unknown(budget) and not members and not names and not listed.refused,
        "listed": listed,
        "used": used,
        "sessions": part(lambda: visit.api.get("/v1/sessions", namespace=key, state="held", limit=ROWS)),
        "members": sorted(members, key=lambda member: (-member[1], member[0])),
        "names": names,
        "total": sum(amounts.values()),
        "grants": grants,
        "form": with_stranger(form, group, names) if form and names else form or empty_form(),
        "is_done": bool(receiver),
        "warning": _beyond_the_group(visit, budget, receiver) if receiver in names else "",
    }
    return PageContent("group.html", values)


def _beyond_the_group(visit: Visit, group: Json, receiver: str) -> str:
    """The warning where the namespace that has just received an amount has more than its group has left."""
    own = part(lambda: visit.api.get(f"/v1/budgets/{segment(receiver)}")).answer
    if own is None:
        return ""
    return beyond_its_group(receiver, own["remaining"], _name(group), group["remaining"])


def urgency(budget: Json) -> tuple[int, int]:
    """The order of attention: over budget, nearly used, the rest; the most used first."""
    return _ORDER.index(state_of(budget)), -(budget["ratioMilli"] or 0)


def state_of(budget: Json) -> str:
    """Over its budget; near its end by its own warning; early: used up at the present rate, by its own or its
    group's account, before its own period ends; fine; or without a limit."""
    if budget["standing"] == "OVER_BUDGET":
        return OVER
    if budget["deciding"]["remaining"] is None:
        return UNLIMITED
    warned, ratio = budget["warnAtMilli"], budget["ratioMilli"]
    if warned is not None and ratio is not None and ratio >= warned:
        return NEAR
    at_ms, end_ms = budget["exhaustedAt"], budget["period"]["to"]
    return FINE if at_ms is None or at_ms >= (end_ms or inf) else EARLY


def used_of(budget: Json) -> int:
    """Posted and pending charges, in milli-GPU x milliseconds."""
    return int(budget["posted"] + budget["pending"])


def totals(budgets: Iterable[Json]) -> BudgetTotals:
    """The figures above the table."""
    listed = list(budgets)
    states = [state_of(each) for each in listed]
    return BudgetTotals(
        states.count(OVER),
        states.count(NEAR) + states.count(EARLY),
        len(listed),
    )


@dataclass(frozen=True, slots=True)
class PeriodTotals:
    """What is used and granted of the budgets of a period, in milli-GPU x milliseconds, and how many they
    are. ``key``: of the period in an address; ``end_ms``: None of a budget for once."""

    key: str
    end_ms: int | None
    used: int
    granted: int
    count: int


def by_period(budgets: Iterable[Json]) -> list[PeriodTotals]:
    """The sums of budgets with the same period, those of most budgets first: others do not add up."""
    found: dict[str, PeriodTotals] = {}
    for budget in budgets:
        if budget["granted"] is not None:
            key, end_ms = _period_key(budget), budget["period"]["to"]
            sums = found.get(key) or PeriodTotals(key, end_ms, 0, 0, 0)
            used, granted = sums.used + used_of(budget), sums.granted + budget["granted"]
            found[key] = PeriodTotals(key, end_ms, used, granted, sums.count + 1)
    return sorted(found.values(), key=lambda sums: -sums.count)


def _period_key(budget: Json) -> str:
    return f"{budget['period']['from']}-{budget['period']['to'] or ''}"


_STATES = {"over": (OVER,), "at-risk": (NEAR, EARLY)}
_OTHER = "other"  # periods beyond those that have a figure each


def _chosen(visit: Visit, answer: Json, periods: Sequence[PeriodTotals]) -> list[Json]:
    """The rows of the figure that the visitor followed; of all namespaces and groups without one. Raises
    ApiRefusedError."""
    state, period = visit.text("state"), visit.text("period")
    if state and state not in _STATES:
        raise ApiRefusedError(400, f"it must be {' or '.join(_STATES)}", "state")
    if not state and not period:
        return [*answer["groups"], *answer["budgets"]]
    keys = {sums.key for sums in periods[_PERIODS:]} if period == _OTHER else {period}
    return [
        budget
        for budget in answer["budgets"]
        if (not state or state_of(budget) in _STATES[state])
        and (not period or (budget["granted"] is not None and _period_key(budget) in keys))
    ]


def _limit(amount: int | None) -> float:
    return inf if amount is None else amount


# a column -> the value of a row by which it sorts, None: it has none, and comes last
_ORDERS: Mapping[str, Callable[[Json], Any]] = {
    "namespace": lambda budget: budget["namespace"],
    "mode": lambda budget: budget["mode"],
    "standing": lambda budget: urgency(budget),
    "percent": lambda budget: budget["ratioMilli"],
    "used": lambda budget: used_of(budget),
    "granted": lambda budget: _limit(budget["granted"]),
    "left": lambda budget: _limit(budget["deciding"]["remaining"]),
    "exhaustedAt": lambda budget: 0 if budget["standing"] == "OVER_BUDGET" else budget["exhaustedAt"],
    "periodEnd": lambda budget: budget["period"]["to"],
    "group": lambda budget: (budget["group"] or {}).get("name"),
    "members": lambda budget: len(budget.get("members", ())),
}


def ordered(budgets: Iterable[Json], sort: str) -> list[Json]:
    """The rows by a column; ``sort``: its key, after ``-`` the largest first, "": those that need attention
    first. Raises ApiRefusedError."""
    by_urgency = sorted(budgets, key=lambda budget: (urgency(budget), budget["namespace"]))
    if not sort:
        return by_urgency
    value = _ORDERS.get(sort.removeprefix("-"))
    if value is None:
        raise ApiRefusedError(400, f"it must be {', '.join(_ORDERS)}, or one of them after -", "sort")
    known = [budget for budget in by_urgency if value(budget) is not None]
    known.sort(key=value, reverse=sort.startswith("-"))
    return known + [budget for budget in by_urgency if value(budget) is None]


def _members(budgets: Iterable[Json]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for each in budgets:
        if each["group"]:
            found.setdefault(each["group"]["name"], []).append(each)
    return found


def _name(group: Json) -> str:
    return str(group["namespace"]).removeprefix(GROUP)
