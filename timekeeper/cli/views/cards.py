"""Nodes, cards and waiting pods as sheets."""

from collections.abc import Iterable, Sequence
from typing import Any

from timekeeper.cli.output import Column, Sheet, within
from timekeeper.core.cluster_map import (
    STALE_MS,
    WAITING_STATES,
    undescribed_sentence,
    unnamed_sentence,
)
from timekeeper.core.texts import age

_CELLS = 10
_FULL, _FREE = "█", "·"
_MAP = (
    Column("node", "NODE"),
    Column("card", "CARD", True),
    Column("model", "MODEL"),
    Column("compute", "COMPUTE"),
    Column("memory", "MEMORY"),
    Column("memoryMiB", "MIB", True),
    Column("state", "STATE"),
    Column("pods", "PODS"),
)
_WAITING = (
    Column("namespace", "NAMESPACE"),
    Column("pod", "POD"),
    Column("priority", "PRIORITY", True),
    Column("standing", "STANDING"),
    Column("state", "STATE"),
    Column("age", "AGE", True),
    Column("reason", "REASON"),
)
_STRANDED = (Column("namespace", "NAMESPACE"), Column("cards", "CARDS STRANDED", True))
_STYLES = {"OVER_BUDGET": "bold red", "IN_BUDGET": "green", "unhealthy": "bold red", "cordoned": "yellow"}
_SHOWN_PODS = 4


def cards(nodes: Iterable[Any], answer: Any) -> Sheet:
    """A row for each card with bars of what is given out, for each node without an inventory, and for what is
    held of a node without a card's name."""
    rows = [row for node in nodes for row in _rows_of(node)]
    return Sheet(_MAP, tuple(rows), answer, _STYLES, "no node has cards")


def _rows_of(node: Any) -> list[dict[str, str]]:
    closed = f"closed: {node['closed']}" if node["closed"] else ""
    if not node["cards"]:
        return [{"node": node["name"], "state": closed or undescribed_sentence(node.get("undescribed", ""))}]
    rows = [_card(node["name"], closed, each) for each in node["cards"]]
    unnamed = unnamed_sentence(node.get("unnamed", 0), len(rows))
    return [*rows, *([{"node": node["name"], "state": unnamed}] if unnamed else [])]


def _card(node: str, closed: str, raw: Any) -> dict[str, str]:
    faults = [
        word for word, is_so in (("unhealthy", not raw["healthy"]), ("cordoned", raw["cordoned"])) if is_so
    ]
    return {
        "node": node,
        "card": str(raw["index"]),
        "model": raw["model"],
        "compute": bar(raw["used_share_milli"], 1000),
        "memory": bar(raw["used_memory_mib"], raw["memory_mib"]),
        "memoryMiB": f"{raw['used_memory_mib']}/{raw['memory_mib']}",
        "state": ", ".join([*faults, *([closed] if closed else [])]),
        "pods": _listed(raw["pods"], raw["more_pods"]),
    }


def _listed(pods: Sequence[Any], unlisted_pods: int) -> str:
    names = [f"{pod['namespace']}/{pod['name']}{_held(pod['held'])}" for pod in pods]
    more = max(0, len(names) - _SHOWN_PODS) + unlisted_pods
    return ", ".join(names[:_SHOWN_PODS]) + (f" and {more} more" if more > 0 else "")


def stranded(listed: Sequence[Any]) -> Sheet:
    """A row for each namespace whose pods strand cards; in cards, with all three decimals."""
    rows = tuple({"namespace": each["namespace"], "cards": f"{each['milli'] / 1000:.3f}"} for each in listed)
    return Sheet(_STRANDED, rows, listed, empty="no card is stranded")


def bar(used: int, whole: int) -> str:
    """A bar of ten cells, each full if any of it is used, and per cent."""
    if whole <= 0:
        return ""
    full = min(_CELLS, -(-_CELLS * used // whole))
    return f"{_FULL * full}{_FREE * (_CELLS - full)} {100 * used // whole:3d}%"


def _held(state: str) -> str:
    return "" if state == "bound" else f" ({state})"


def waiting(
    pods: Iterable[Any], answer: Any, now_ms: int, namespace: str | None, name: str | None = None
) -> Sheet:
    """A row for each pod that is not bound, with why. ``namespace``: the only one that was asked for;
    ``name``: of the only pod."""
    rows = tuple(
        {
            "namespace": pod["namespace"],
            "pod": pod["name"],
            "priority": str(pod["priority"]),
            "standing": pod["standing"],
            "state": WAITING_STATES.get(pod["state"], pod["state"]),
            "age": age(now_ms - pod["created"]),
            "reason": pod["reason"],
        }
        for pod in pods
    )
    where = within(namespace)
    empty = (
        f"no GPU pod {name} is listed{where}: it is bound, or there is none of this name"
        if name
        else f"no GPU pod is listed{where}"
    )
    return Sheet(_WAITING, rows, answer, _STYLES, empty)


def unlisted_warning(answer: Any) -> str:
    """That more pods wait, or may wait, than are listed; "" if all are listed."""
    if answer["posted"] is None or answer["total"] == len(answer["pods"]):
        return ""
    listed = "Not all" if answer["total"] is None else f"{len(answer['pods'])} of {answer['total']}"
    return f"{listed} waiting pods are listed: kubectl bursar explain POD says why another one waits."


def post_warning(posted_ms: int | None, now_ms: int) -> str:
    """That the extender has posted nothing, or nothing lately; "" if what it posted is of now."""
    if posted_ms is None:
        return "Nothing is known: no extender has posted nodes or waiting pods; its flag is --timekeeper-url."
    is_old = now_ms - posted_ms > STALE_MS
    return f"This is old: the extender posted last {age(now_ms - posted_ms)} ago." if is_old else ""
