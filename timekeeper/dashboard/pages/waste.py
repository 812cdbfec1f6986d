"""Waste: what was held of cards, what was measured of that, and what was used."""

from typing import Any

from timekeeper.dashboard.api_caller import Json
from timekeeper.dashboard.visits import PageContent, Visit, part

_ROWS = 200
_HOUR_MS = 3_600_000  # measured use is kept by the hour
GROUPS = ("namespace", "namespace,owner", "owner", "pod", "node", "model", "group")
SPANS = {"day": 86_400_000, "week": 7 * 86_400_000, "month": 30 * 86_400_000}


def waste(visit: Visit) -> PageContent:
    """The largest users of a time; those who leave most of their cards unused come first."""
    group = visit.text("group", GROUPS[0])
    span = visit.text("span", "week") or "week"
    length_ms = SPANS.get(span, SPANS["week"])
    answer = visit.api.recent(
        "/v1/usage",
        namespace=visit.scope,
        group=group,
        use="true",
        sort="-gpuHours",
        from_=(visit.now_ms - length_ms) // _HOUR_MS * _HOUR_MS,
        limit=_ROWS,
    )
    rows = sorted(map(_row, answer["rows"]), key=lambda row: -row["unused"])
    values = {"rows": rows, "columns": (group or "").split(","), "groups": GROUPS, "group": group}
    sums = {name: sum(row[name] for row in rows) for name in ("requested", "measured", "used", "unused")}
    values |= {"span": span, "spans": SPANS, "sums": sums, "most": _ROWS, "stranded": _stranded(visit)}
    return PageContent("waste.html", values)


def _stranded(visit: Visit) -> list[Json]:
    """The namespaces that strand cards now, the largest first; none for those who may not read the map."""
    found = part(lambda: visit.api.get("/v1/cluster", namespace=visit.scope, limit=1))
    return [] if found.answer is None else found.answer["stranded"][:_ROWS]


def _row(raw: Json) -> dict[str, Any]:
    return {**raw, "unused": max(0, raw["measured"] - raw["used"])}
