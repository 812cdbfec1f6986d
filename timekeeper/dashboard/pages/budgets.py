"""All budgets at a glance, and the groups with their members."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from timekeeper.dashboard.api_caller import Json
from timekeeper.dashboard.pages.accounts import account_values
from timekeeper.dashboard.visits import PageContent, Visit, segment

ROWS = 100  # in one page of the table
OVER, NEAR, EARLY, FINE, UNLIMITED = "over", "near", "early", "fine", "unlimited"
_ORDER = (OVER, NEAR, EARLY, FINE, UNLIMITED)


@dataclass(frozen=True, slots=True)
class BudgetTotals:
    """Sums over accounts with a limit, in milli-GPU x milliseconds, and how many accounts are in which
    state."""

    granted: int
    used: int
    remaining: int
    over: int
    near: int
    accounts: int


def overview(visit: Visit) -> PageContent:
    """Every namespace with a budget: those that need attention first."""
    answer = visit.api.recent("/v1/budgets")
    wanted = (visit.text("find") or "").lower()
    found = [each for each in answer["budgets"] if wanted in each["namespace"]]
    by_name = visit.text("sort") == "name"
    found.sort(key=lambda each: (not by_name and urgency(each), each["namespace"]))
    at = _page(visit.text("page"), len(found))
    values = {
        "rows": found[ROWS * at : ROWS * (at + 1)],
        "found": len(found),
        "totals": totals(answer["budgets"]),
        "has_groups": bool(answer["groups"]),
        "before": visit.link(page=at) if at else None,
        "after": visit.link(page=at + 2) if ROWS * (at + 1) < len(found) else None,
        "first": ROWS * at + 1,
        "sort": "name" if by_name else "urgency",
        "find": wanted,
    }
    return PageContent("budgets.html", values)


def groups(visit: Visit) -> PageContent:
    """Every group with its account and members."""
    answer = visit.api.recent("/v1/budgets")
    members = _members(answer["budgets"])
    rows = [(each, members.get(_name(each), [])) for each in answer["groups"]]
    rows.sort(key=lambda row: (urgency(row[0]), row[0]["namespace"]))
    return PageContent("groups.html", {"rows": rows})


def group(visit: Visit, group: str) -> PageContent:
    """One group: its account over time, and what each member used of it."""
    answer = visit.api.recent("/v1/budgets")
    key = f"_group.{group}"
    budget = visit.api.get(f"/v1/budgets/{segment(key)}")
    members = sorted(_members(answer["budgets"]).get(group, []), key=lambda each: -used_of(each))
    values = account_values(visit, key, budget)
    most = max((used_of(each) for each in members), default=0)
    return PageContent("group.html", {**values, "group": group, "members": members, "most": most})


def urgency(budget: Json) -> tuple[int, int]:
    """The order of attention: over budget, nearly used, the rest; the most used first."""
    return _ORDER.index(state_of(budget)), -(budget["ratioMilli"] or 0)


def state_of(budget: Json) -> str:
    """Over its budget; near its end by its own warning; early: used up in this period at the present rate;
    fine; or without a limit."""
    if budget["standing"] == "OVER_BUDGET":
        return OVER
    if budget["granted"] is None:
        return UNLIMITED
    warned = budget["warnAtMilli"]
    if warned is not None and budget["ratioMilli"] >= warned:
        return NEAR
    return FINE if budget["exhaustedAt"] is None else EARLY


def used_of(budget: Json) -> int:
    """Posted and pending charges, in milli-GPU x milliseconds."""
    return int(budget["posted"] + budget["pending"])


def totals(budgets: Iterable[Json]) -> BudgetTotals:
    """The figures above the table."""
    listed = list(budgets)
    limited = [each for each in listed if each["granted"] is not None]
    states = [state_of(each) for each in listed]
    return BudgetTotals(
        sum(each["granted"] for each in limited),
        sum(map(used_of, limited)),
        sum(max(0, each["remaining"]) for each in limited),
        states.count(OVER),
        states.count(NEAR) + states.count(EARLY),
        len(listed),
    )


def _members(budgets: Iterable[Json]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for each in budgets:
        if each["group"]:
            found.setdefault(each["group"]["name"], []).append(each)
    return found


def _name(group: Json) -> str:
    return str(group["namespace"]).removeprefix("_group.")


def _page(text: str | None, rows: int) -> int:
    """The page's place, from 0; a number beyond the last page is the last."""
    asked = int(text) - 1 if text and text.isascii() and text.isdigit() and len(text) < 7 else 0
    return max(0, min(asked, (rows - 1) // ROWS))
