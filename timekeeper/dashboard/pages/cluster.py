"""The live map of nodes and cards, and the pods that wait."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from math import inf
from typing import Any

from timekeeper.api import sheets
from timekeeper.core.cluster_map import STALE_MS
from timekeeper.core.decisions import KINDS
from timekeeper.core.findings import of_use
from timekeeper.core.texts import GPU_HOUR, cell, gpus, money, per_mille
from timekeeper.dashboard.api_caller import MAX_AGE_S, ApiRefusedError, Json
from timekeeper.dashboard.charts import (
    WHOLE_MILLI,
    Step,
    card_row,
    free_sentence,
    line_chart,
    row_sentence,
    width_of,
)
from timekeeper.dashboard.visits import FORBIDDEN, PageContent, Visit, part, segment

_HOUR_MS = 3_600_000  # figures over time are kept by the hour
_NODES, _HELD, _NODE_ROWS = 60, 100, 500
_MAX_SHOWN = 100


def cluster(visit: Visit) -> PageContent:
    """What is free, by model, and a page of nodes, the fullest first; of one node its pods."""
    node = visit.text("node")
    answer = visit.api.get(
        "/v1/cluster", namespace=visit.scope, node=node, limit=_NODES, after=visit.text("after")
    )
    rows = [
        {
            **each,
            "shapes": card_row(each["cards"]),
            "width": width_of(each["cards"]),
            "sentence": row_sentence(each["cards"], each.get("unnamed", 0), each.get("undescribed", "")),
            "free": free_sentence(each["cards"], bool(each["closed"]), each.get("unnamed", 0)),
            "models": ", ".join(sorted({card["model"] for card in each["cards"]})),
            "pods": sorted(
                {
                    (pod["namespace"], pod["name"], pod["uid"])
                    for card in each["cards"]
                    for pod in card["pods"]
                }
            ),
        }
        for each in answer["nodes"]
    ]
    selected = visit.text("labels")
    free = None if node else visit.api.get("/v1/free", namespace=visit.scope, labelSelector=selected)
    notes = [] if free is None else list(sheets.FREE.warnings(free, visit.now_ms))
    values = {"rows": rows, "posted": answer["posted"], "node": node, "free": free, "notes": notes}
    values |= {} if node else cards_over_time(visit)
    more = visit.link(after=answer["next"]) if answer["next"] else None
    first = visit.link(after=None) if visit.text("after") else None
    is_stale = answer["posted"] is not None and visit.now_ms - answer["posted"] > STALE_MS
    return PageContent("map.html", {**values, "more": more, "first": first, "is_stale": is_stale})


_OF_CARDS = {"left": "held", "free": "free", "ahead": "waited for"}


def cards_over_time(visit: Visit) -> Json:
    """The picture of cards by the hour, of the model that the visitor chose or of all; its models; nothing
    without the right to read it."""
    answer = part(lambda: visit.api.recent("/v1/cards", namespace=visit.scope)).answer
    rows: list[Json] = answer["hours"] if answer else []
    model = visit.text("model")
    hours: dict[int, Step] = {}
    for row in rows:
        at_ms, known_ms = row["hour"], row["known"]
        _, end_ms, _, sums = hours.get(at_ms) or (0, min(at_ms + _HOUR_MS, visit.now_ms), 0, (0, 0, 0))
        if model in (None, row["model"]):
            held, free, waiting = sums
            sums = held + row["heldMilli"], free + row["freeMilli"], waiting + row["waitingMilli"]
        hours[at_ms] = at_ms, end_ms, known_ms, sums
    steps = [step for step in hours.values() if step[0] < visit.now_ms]
    title = f"Cards{f' of {model}' if model else ''} by the hour"
    chart = line_chart(title, _OF_CARDS, steps, WHOLE_MILLI, gpus, visit.zone)
    return {"cards": chart, "model": model, "models": sorted({row["model"] for row in rows} - {""})}


def node(visit: Visit, node: str) -> PageContent:
    """Who was charged on a node until when, also where it has left."""
    asked = {"namespace": visit.scope, "from_": visit.text("from"), "to": visit.text("to")}
    answer = visit.api.whole(f"/v1/nodes/{segment(node)}", "charges", **asked)
    times = {name: _ms(answer[name]) for name in ("heard", "left", "from", "to")}
    charges = sorted(
        answer["charges"], key=lambda each: (each["end"] == "runs", _ms(each["to"]) or inf), reverse=True
    )
    rows, _, before, more = visit.page_of(charges, _NODE_ROWS)
    values = {"its": {**answer, **times}, "rows": rows, "before": before, "more": more}
    return PageContent("node.html", {**values, "total": sum(charge["amount"] for charge in charges)})


def _ms(written: str | None) -> int | None:
    """The API's time for the templates, which write times for people."""
    return None if written is None else int(datetime.fromisoformat(written).timestamp() * 1000)


def waiting(visit: Visit) -> PageContent:
    """Held pods in the order of their release, gangs that wait for cards, and the pods that no node takes, by
    how long they wait. A gang's row is its oldest listed pod's."""
    ask = visit.api.get
    held = part(lambda: ask("/v1/held", namespace=visit.scope, limit=_HELD, after=visit.text("after")))
    unbound = part(lambda: ask("/v1/waiting", namespace=visit.scope))
    if held.refused and unbound.refused:
        raise ApiRefusedError(FORBIDDEN, held.refused)
    pods = [] if unbound.answer is None else unbound.answer["pods"]
    gangs: dict[tuple[str, str], Json] = {}
    for each in pods:
        if each.get("gang"):
            gangs.setdefault((each["namespace"], each["gang"]), {**each, "pods": 0})["pods"] += 1
    ungated = [each for each in pods if each["state"] != "gated"]
    shown, first, before, after = visit.page_of(ungated, _MAX_SHOWN)
    total = None if unbound.answer is None else unbound.answer["total"]
    values = {
        "held": held,
        "gangs": list(gangs.values()),
        "unbound": unbound,
        **{"pods": shown, "found": len(ungated), "first": first, "before": before, "after": after},
        "is_whole": total == len(pods),
        "unlisted": None if total is None else total - len(pods),
    }
    return PageContent("waiting.html", values)


_WASTE_ROWS = 200
GROUPS = ("namespace", "namespace,owner", "namespace,workload", "owner", "pod", "node", "model", "group")
SPANS = {"day": 86_400_000, "week": 7 * 86_400_000, "month": 30 * 86_400_000}


def waste(visit: Visit) -> PageContent:
    """The largest users of a time; those who leave most of their cards unused come first."""
    label, span = visit.text("label"), visit.text("span", "week") or "week"
    group = f"label:{label}" if label else visit.text("group", GROUPS[0]) or ""
    if span not in SPANS:
        raise ApiRefusedError(400, f"it must be {', '.join(SPANS)}", "span")
    begin_ms = (visit.now_ms - SPANS[span]) // _HOUR_MS * _HOUR_MS
    below = _below(visit)
    asked: Json = {"group": group, "use": "true", "sort": "-gpuHours", "format": "csv"}
    asked |= {"from_": begin_ms, "limit": _WASTE_ROWS + 1}
    raw = visit.api.table("/v1/usage", MAX_AGE_S, namespace=visit.scope, **asked)
    columns = [group] if label else ["namespace", group] if group in ("pod", "owner") else group.split(",")
    every = _wasted(raw[:_WASTE_ROWS], columns)
    rows = sorted(every, key=lambda row: -row["unused"])
    if below:
        least = 100 - below
        rows = [row for row in rows if row["measured"] and 100 * row["unused"] > least * row["measured"]]
    values: Json = {"rows": rows, "columns": columns, "groups": GROUPS, "group": group, "label": label}
    values |= {"below": below, "is_any": any(row["measured"] for row in every)}
    sums = {name: sum(row[name] for row in rows) for name in _OF_USE}
    values |= {"span": span, "spans": SPANS, "sums": sums, "most": _WASTE_ROWS}
    values |= {"is_cut": len(raw) > _WASTE_ROWS, "cost": _in_money(rows), "in_money": _in_money}
    return PageContent("waste.html", values | _idle(visit))


_OF_USE = ("requested", "measured", "used", "unused")


def _wasted(raw: Iterable[Mapping[str, str]], columns: Iterable[str]) -> list[Json]:
    """The rows of a report, which has one for each price, by these columns. ``costs``: by currency, the part
    of the cost that was not used: as much of it as of what was requested."""
    found: dict[tuple[str, ...], Json] = {}
    for cells in raw:
        if cells.get("correction"):
            continue
        key = tuple(cells[name] for name in (*columns, "uid") if name in cells)
        row = found.setdefault(key, {**cells, **dict.fromkeys(_OF_USE, 0), "costs": Counter()})
        figures = {name: int(cells[name] or 0) for name in _OF_USE}
        row.update({name: row[name] + figure for name, figure in figures.items()})
        if cells["price"] and figures["requested"]:
            wasted = Decimal(cells["cost"]) * figures["unused"] / figures["requested"]
            row["costs"][cells["currency"]] += wasted
    return list(found.values())


def _in_money(rows: Iterable[Json]) -> str:
    """What these rows wasted, in each currency; "" without a price."""
    costs = sum((row["costs"] for row in rows), Counter[str]())
    return " + ".join(f"{money(cost)} {currency}" for currency, cost in sorted(costs.items()))


def _below(visit: Visit) -> int | None:
    """The threshold in per cent of what was measured; None: all are shown."""
    text = visit.text("below")
    if text is None:
        return None
    if not re.fullmatch("[1-9][0-9]?|100", text, re.ASCII):
        raise ApiRefusedError(400, "it must be a whole number of per cent from 1 to 100", "below")
    return int(text)


def _idle(visit: Visit) -> dict[str, Any]:
    """The idle pods, those that are idle longest first; and what is wrong with
    their measurement. Both are empty where the visitor may not see such pods."""
    found = part(lambda: visit.api.get("/v1/idle", namespace=visit.scope)).answer
    pods = sorted(found["pods"], key=lambda each: each["since"]) if found else []
    wrong = [finding.sentence for finding in of_use(found) if finding.code == "not-measured"] if found else ()
    below = per_mille(found["below"]) if found else ""
    return {"idle": pods[:_WASTE_ROWS], "found": len(pods), "notes": wrong, "idle_below": below}


_DECISION_ROWS = 100
FILTERS = ("namespace", "kind", "reason", "pod", "owner", "from", "to")


def decisions(visit: Visit) -> PageContent:
    """The newest decisions first."""
    asked = {name: visit.text(name) for name in FILTERS}
    query = {("from_" if name == "from" else name): value for name, value in asked.items()}
    answer = visit.api.get("/v1/decisions", limit=_DECISION_ROWS, after=visit.text("after"), **query)
    older = visit.link(after=answer["next"]) if answer["next"] else None
    newest = visit.link(after=None) if visit.text("after") else None
    values = {"answer": answer, "older": older, "newest": newest, "kinds": KINDS}
    return PageContent("decisions.html", {**values, "filters": asked})


def pod(visit: Visit, namespace: str, pod: str) -> PageContent:
    """The life of a pod."""
    uid = visit.text("uid")
    path = f"/v1/explain/{segment(namespace)}/{segment(pod)}"
    return _life(visit, visit.api.get(path, uid=uid), uid)


def owner(visit: Visit, namespace: str, kind: str, name: str) -> PageContent:
    """The life of the pods of a controller."""
    path = f"/v1/explain/{segment(namespace)}/{segment(kind)}/{segment(name)}"
    return _life(visit, visit.api.get(path), None)


def _life(visit: Visit, story: Json, uid: str | None) -> PageContent:
    """With what was measured by the hour; an hour without a measurement is a gap."""
    steps = [
        (hour["hour"], end_ms, end_ms - hour["hour"], (hour["measured"], hour["used"]))
        for hour in story["use"]
        if (end_ms := min(hour["hour"] + _HOUR_MS, visit.now_ms)) > hour["hour"]
    ]
    lines = {"left": "held while measured, GPU-hours", "ahead": "used, GPU-hours"}
    chart = line_chart("Measured use by the hour", lines, steps, int(GPU_HOUR), cell, visit.zone)
    return PageContent("story.html", {"story": story, "uid": uid, "use": chart})
