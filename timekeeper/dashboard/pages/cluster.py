"""The live map of nodes and cards, and the pods that wait."""

from timekeeper.core.cluster_map import WAITING_STATES
from timekeeper.dashboard.api_caller import ApiRefusedError
from timekeeper.dashboard.charts.cards import card_row, filled, free_sentence, row_sentence, width_of
from timekeeper.dashboard.visits import FORBIDDEN, PageContent, Visit, page_at, part

_NODES, _HELD = 60, 100
STALE_MS = 60_000  # without a post for this long the map says so
_MOST_SHOWN = 100


def cluster(visit: Visit) -> PageContent:
    """Sums by model, how full the nodes are, and a page of nodes, the fullest first; of one node its pods."""
    node = visit.text("node")
    answer = visit.api.get(
        "/v1/cluster", namespace=visit.scope, node=node, limit=_NODES, after=visit.text("after")
    )
    rows = [
        {
            **each,
            "shapes": card_row(each["cards"]),
            "width": width_of(each["cards"]),
            "sentence": row_sentence(each["cards"]),
            "free": free_sentence(each["cards"], bool(each["closed"])),
            "models": ", ".join(sorted({card["model"] for card in each["cards"]})),
            "pods": sorted({(pod["namespace"], pod["name"], pod["uid"]) for pod in _pods(each)}),
        }
        for each in answer["nodes"]
    ]
    totals = [{**each, "steps": filled(each["filled"])} for each in answer["totals"]]
    values = {"rows": rows, "totals": totals, "posted": answer["posted"], "node": node}
    more = visit.link(after=answer["next"]) if answer["next"] else None
    first = visit.link(after=None) if visit.text("after") else None
    is_stale = answer["posted"] is not None and visit.now_ms - answer["posted"] > STALE_MS
    return PageContent("map.html", {**values, "more": more, "first": first, "is_stale": is_stale})


def waiting(visit: Visit) -> PageContent:
    """Held pods in the order of their release, and the pods that no node takes, by how long they wait."""
    ask = visit.api.get
    held = part(lambda: ask("/v1/held", namespace=visit.scope, limit=_HELD, after=visit.text("after")))
    unbound = part(lambda: ask("/v1/waiting", namespace=visit.scope))
    if held.refused and unbound.refused:
        raise ApiRefusedError(FORBIDDEN, held.refused)
    pods = [] if unbound.answer is None else unbound.answer["pods"]
    ungated = [each for each in pods if each["state"] != "gated"]
    at = page_at(visit.text("page"), len(ungated), _MOST_SHOWN)
    begin, end = _MOST_SHOWN * at, _MOST_SHOWN * (at + 1)
    total = None if unbound.answer is None else unbound.answer["total"]
    values = {
        "held": held,
        "unbound": unbound,
        "pods": ungated[begin:end],
        "words": WAITING_STATES,
        "found": len(ungated),
        "first": begin + 1,
        "before": visit.link(page=at) if at else None,
        "after": visit.link(page=at + 2) if end < len(ungated) else None,
        "is_whole": total == len(pods),
        "unlisted": None if total is None else total - len(pods),
    }
    return PageContent("waiting.html", values)


def _pods(node: dict[str, list[dict[str, list[dict[str, str]]]]]) -> list[dict[str, str]]:
    return [pod for card in node["cards"] for pod in card["pods"]]
