"""Nodes, cards and waiting pods as sheets."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from timekeeper.cli.output import Column, Sheet, within
from timekeeper.core.cluster_map import (
    WAITING_STATES,
    undescribed_sentence,
    unnamed_sentence,
    waiting_reason,
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
    Column("asks", "REQUESTS"),
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
    unnamed = node.get("unnamed", [])  # the release before has none
    return [*rows, *([_unnamed(node["name"], len(rows), unnamed)] if unnamed else [])]


def _unnamed(node: str, cards: int, pods: Sequence[Any]) -> dict[str, str]:
    state = unnamed_sentence(sum(each["cards"] for each in pods), cards)
    return {"node": node, "state": state, "pods": _listed(pods)}


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
        "pods": _listed(raw["pods"]),
    }


def _listed(pods: Sequence[Any]) -> str:
    names = [f"{each['namespace']}/{each['name']}{_held(each['held'])}" for each in pods]
    more = len(names) - _SHOWN_PODS
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
    pods: Iterable[Any], answer: Any, now_s: float, namespace: str | None, name: str | None = None
) -> Sheet:
    """A row for each pod that is not bound, with the reason that concerns most nodes. ``namespace``: the only
    one that was asked for; ``name``: of the only pod."""
    rows = tuple(
        {
            "namespace": raw["namespace"],
            "pod": raw["name"],
            "priority": str(raw["priority"]),
            "standing": raw["standing"],
            "state": WAITING_STATES.get(raw["state"], raw["state"]),
            "age": age(int(1000 * (now_s - datetime.fromisoformat(raw["created"]).timestamp()))),
            "asks": ", ".join(map(_ask, raw["asks"])),
            "reason": waiting_reason(raw),
        }
        for raw in pods
    )
    where = within(namespace)
    empty = (
        f"no GPU pod {name} waits{where}: it is bound, or there is none of this name"
        if name
        else f"no GPU pod waits{where}"
    )
    return Sheet(_WAITING, rows, answer, _STYLES, empty)


def _ask(raw: Any) -> str:
    parts = [f"{raw['share_milli'] / 10:g}%"] if raw["share_milli"] else []
    parts += [f"{raw['memory_mib']} MiB"] if raw["memory_mib"] else []
    times = f"{raw['devices']} x " if raw["devices"] > 1 else ""
    return times + " + ".join(parts)
