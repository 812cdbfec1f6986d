"""The body of ``POST /v1/cluster``. After this module it is a value that needs no further checks."""

from collections.abc import Callable, Mapping
from typing import Any, cast

from timekeeper.api.bodies.heartbeats import MOST_FIGURE, OLDEST_MS, is_natural, read_object
from timekeeper.api.problem import bad
from timekeeper.core.cluster_map import (
    MOST_CARDS,
    MOST_NAME,
    MOST_NODES,
    MOST_PODS,
    MOST_STRANDING,
    MOST_TEXT,
    MOST_WAITING,
    MapNode,
    MapPost,
    MapWaiting,
)

Json = dict[str, Any]
Check = tuple[Callable[[Any], bool], str]

_MOST_PRIORITY = 2**31


def _text(most: int, least: int = 0) -> Check:
    sentence = f"it must be a printable text of {least} to {most} characters"
    return (
        lambda value: isinstance(value, str) and least <= len(value) <= most and value.isprintable(),
        sentence,
    )


def _natural(most: int) -> Check:
    return lambda value: is_natural(value, most), f"it must be a whole number from 0 to {most}"


_BOOL: Check = (lambda value: isinstance(value, bool), "it must be true or false")
_PRIORITY: Check = (
    lambda value: isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _MOST_PRIORITY,
    "it must be a whole number of 32 bits",
)
_NAME, _AMOUNT = _text(MOST_NAME, 1), _natural(MOST_FIGURE)
_POD: Mapping[str, Check] = {
    **dict.fromkeys(("namespace", "name", "uid", "held"), _NAME),
    **dict.fromkeys(("share_milli", "memory_mib"), _AMOUNT),
}
_CARD: Mapping[str, Check] = {
    "uuid": _NAME,
    "model": _text(MOST_NAME),
    **dict.fromkeys(("healthy", "cordoned"), _BOOL),
    **dict.fromkeys(("index", "memory_mib", "used_share_milli", "used_memory_mib", "more_pods"), _AMOUNT),
}
_NODE: Mapping[str, Check] = {"name": _NAME, "closed": _text(MOST_TEXT)}
_WAITING: Mapping[str, Check] = {
    **dict.fromkeys(("namespace", "name", "uid", "state", "standing"), _NAME),
    "priority": _PRIORITY,
    "age_ms": _natural(OLDEST_MS),
    "reason": _text(MOST_TEXT),
}


def read_cluster(body: bytes) -> MapPost:
    """Parse the body. Raises a Problem that names the field."""
    raw = read_object(body, ("version", "nodes", "gone", "waiting"))
    if raw.get("version") != 1:
        raise bad("version", "it must be 1")
    nodes = [_node(each, f"nodes[{at}]") for at, each in enumerate(_listed(raw, "nodes", "", MOST_NODES))]
    if len({each["name"] for each in nodes}) < len(nodes):
        raise bad("nodes", "each node must appear once")
    gone = _listed(raw, "gone", "", MOST_NODES)
    if not all(_NAME[0](each) for each in gone):
        raise bad("gone", "it must be a list of names")
    waiting = raw.get("waiting")
    return {
        "version": 1,
        "nodes": nodes,
        "gone": gone,
        "waiting": None if waiting is None else _waiting(waiting),
    }


def _node(raw: object, where: str) -> MapNode:
    read = _read(raw, where, _NODE)
    cards = []
    for at, each in enumerate(_listed(cast(Json, raw), "cards", where, MOST_CARDS)):
        place = f"{where}.cards[{at}]"
        card = _read(each, place, _CARD)
        pods = _listed(each, "pods", place, MOST_PODS)
        card["pods"] = [_read(pod, f"{place}.pods[{number}]", _POD) for number, pod in enumerate(pods)]
        cards.append(card)
    stranded = _counts(raw, "stranded", where)
    if len(stranded) > MOST_STRANDING:
        raise bad(f"{where}.stranded", f"it must name at most {MOST_STRANDING} namespaces")
    return cast(MapNode, {**read, "cards": cards} | ({"stranded": stranded} if stranded else {}))


def _waiting(raw: object) -> MapWaiting:
    read = _read(raw, "waiting", {"total": _AMOUNT})
    pods = _listed(cast(Json, raw), "pods", "waiting", MOST_WAITING)
    read["pods"] = [_read(each, f"waiting.pods[{at}]", _WAITING) for at, each in enumerate(pods)]
    return cast(MapWaiting, read | {"more": _counts(raw, "more", "waiting")})


def _counts(raw: object, name: str, where: str) -> dict[str, int]:
    """A whole number for each namespace; empty where it is left out."""
    found = cast(Json, raw).get(name, {})
    if not isinstance(found, dict) or not all(_NAME[0](each) and _AMOUNT[0](found[each]) for each in found):
        raise bad(f"{where}.{name}", "it must have a whole number for each namespace")
    return found


def _read(raw: object, where: str, fields: Mapping[str, Check]) -> Json:
    """The fields of an object, each as its check allows. Others are left out."""
    if not isinstance(raw, dict):
        raise bad(where, "it must be an object")
    for name, (is_right, sentence) in fields.items():
        if not is_right(raw.get(name)):
            raise bad(f"{where}.{name}", sentence)
    return {name: raw[name] for name in fields}


def _listed(raw: Json, name: str, where: str, most: int) -> list[Any]:
    listed = raw.get(name)
    if not isinstance(listed, list) or len(listed) > most:
        raise bad(f"{where}.{name}".lstrip("."), f"it must be a list of at most {most}")
    return listed
