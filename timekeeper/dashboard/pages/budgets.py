"""All budgets at a glance, and the groups with their members."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from timekeeper.core.budgets.policy import GROUP
from timekeeper.core.budgets.sentences import beyond_its_group
from timekeeper.core.findings import broken_sentences
from timekeeper.dashboard.api_caller import Json
from timekeeper.dashboard.pages.accounts import (
    PassingOnForm,
    account_values,
    empty_form,
    with_stranger,
)
from timekeeper.dashboard.visits import PageContent, Visit, page_at, part, segment

ROWS = 100  # in one page of the table
_MEMBERS = 1_000
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
    """Every namespace with a budget: those that need attention first."""
    answer = visit.api.recent("/v1/budgets")
    found_wrong = part(lambda: visit.api.get("/v1/findings")).answer or {"findings": ()}
    wanted = (visit.text("find") or "").lower()
    found = [each for each in (*answer["groups"], *answer["budgets"]) if wanted in each["namespace"]]
    by_name = visit.text("sort") == "name"
    found.sort(key=lambda each: (not by_name and urgency(each), each["namespace"]))
    at = page_at(visit.text("page"), len(found), ROWS)
    values = {
        "use": _use(visit) if not answer["budgets"] else (),
        "rows": found[ROWS * at : ROWS * (at + 1)],
        "found": len(found),
        "totals": totals(answer["budgets"]),
        "periods": by_period(answer["budgets"]),
        "has_groups": bool(answer["groups"]),
        "before": visit.link(page=at) if at else None,
        "after": visit.link(page=at + 2) if ROWS * (at + 1) < len(found) else None,
        "first": ROWS * at + 1,
        "sort": "name" if by_name else "urgency",
        "find": wanted,
        "notes": [
            *broken_sentences(answer),
            *(each["sentence"] for each in found_wrong["findings"] if each["level"] != "ok"),
        ],
    }
    return PageContent("budgets.html", values)


def _use(visit: Visit) -> list[Json]:
    """What namespaces used this month, the largest first; nothing without the right to read it."""

    def ask() -> Json:
        return visit.api.recent("/v1/usage", group="namespace", sort="-gpuHours", limit=ROWS)

    return list((part(ask).answer or {}).get("rows", ()))


def groups(visit: Visit) -> PageContent:
    """Every group with its account and members."""
    answer = visit.api.recent("/v1/budgets")
    members = _members(answer["budgets"])
    rows = [(each, members.get(_name(each), [])) for each in answer["groups"]]
    rows.sort(key=lambda row: (urgency(row[0]), row[0]["namespace"]))
    return PageContent("groups.html", {"rows": rows})


def group(visit: Visit, group: str, form: PassingOnForm | None = None) -> PageContent:
    """One group: its account over time, what each member used of it in its period, and what it has passed on.
    ``form``: as the visitor has sent it."""
    key = f"_group.{group}"
    budget = visit.api.get(f"/v1/budgets/{segment(key)}")
    listed = part(lambda: visit.api.get("/v1/budgets", group=group))
    grants = part(lambda: visit.api.get(f"/v1/groups/{segment(group)}/grants"))
    used = part(lambda: _used(visit, key, budget))
    names, receiver = (grants.answer or {}).get("members", ()), visit.text("passed-on") or ""
    accounts = {member["namespace"]: member for member in (listed.answer or {}).get("budgets", ())}
    amounts = {row["namespace"]: row["amount"] for row in (used.answer or {}).get("rows", ())}
    members = [(name, amounts.get(name, 0), accounts.get(name)) for name in {**accounts, **amounts}]
    values = {
        **account_values(visit, key, budget),
        "group": group,
        "listed": listed,
        "used": used,
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


def _used(visit: Visit, key: str, budget: Json) -> Json:
    """What each member used of the group's account in its period."""
    begin_ms = max(0, budget["period"]["from"])
    end_ms = max(visit.now_ms, begin_ms + 1)
    return visit.api.get(
        "/v1/usage",
        namespace=key,
        group="namespace",
        sort="-gpuHours",
        from_=begin_ms,
        to=end_ms,
        limit=_MEMBERS,
    )


def urgency(budget: Json) -> tuple[int, int]:
    """The order of attention: over budget, nearly used, the rest; the most used first."""
    return _ORDER.index(state_of(budget)), -(budget["ratioMilli"] or 0)


def state_of(budget: Json) -> str:
    """Over its budget; near its end by its own warning; early: used up in this period at the present rate;
    fine; or without a limit."""
    if budget["standing"] == "OVER_BUDGET":
        return OVER
    if budget["deciding"]["remaining"] is None:
        return UNLIMITED
    warned, ratio = budget["warnAtMilli"], budget["ratioMilli"]
    if warned is not None and ratio is not None and ratio >= warned:
        return NEAR
    return FINE if budget["exhaustedAt"] is None else EARLY


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


def by_period(budgets: Iterable[Json]) -> list[tuple[int | None, int, int, int]]:
    """When the period ends, what is used and granted of budgets with the same period, and how many they are:
    others do not add up. At most `_PERIODS`, those of most budgets first."""
    found: dict[tuple[int, int | None], tuple[int, int, int]] = {}
    for budget in budgets:
        if budget["granted"] is not None:
            period = budget["period"]["from"], budget["period"]["to"]
            used, granted, count = found.get(period, (0, 0, 0))
            found[period] = used + used_of(budget), granted + budget["granted"], count + 1
    ranked = sorted(found.items(), key=lambda sums: -sums[1][2])
    return [(end_ms, *sums) for (_, end_ms), sums in ranked[:_PERIODS]]


def _members(budgets: Iterable[Json]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for each in budgets:
        if each["group"]:
            found.setdefault(each["group"]["name"], []).append(each)
    return found


def _name(group: Json) -> str:
    return str(group["namespace"]).removeprefix(GROUP)
