"""``/v1/cluster`` and ``/v1/waiting``: nodes with their cards and pods, and the pods that wait, as the
extender posted them last."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NotRequired, TypedDict, cast

from flask import Flask, Response, request

from timekeeper.api.http.answers import Next, Version, answer
from timekeeper.api.http.parameters import AFTER, LIMIT, NAMESPACE, NODE, cursor, shaped
from timekeeper.api.http.posts import MAX_FIGURE, OLDEST_MS, is_natural, read_object
from timekeeper.api.http.routes import JSON, ApiRoute, Call, Right, read_body, serve
from timekeeper.api.http.services import Services
from timekeeper.core.cluster_map import (
    MAX_CARDS,
    MAX_NAME,
    MAX_NODES,
    MAX_PODS,
    MAX_STRANDING,
    MAX_TERM,
    MAX_TEXT,
    MAX_WAITING,
    MapCard,
    MapNode,
    MapPost,
    MapWaiting,
    MapWaitingPod,
)
from timekeeper.core.values import WHOLE_MILLI
from timekeeper.runtime.http.problem_details import Problem, bad
from timekeeper.store import cluster_map
from timekeeper.store.cluster_map import NodeSums

Json = dict[str, Any]
Check = tuple[Callable[[Any], bool], str]

_MAX_PRIORITY = 2**31


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
    lambda value: isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _MAX_PRIORITY,
    "it must be a whole number of 32 bits",
)
_NAME, _AMOUNT = _text(MAX_NAME, 1), _natural(MAX_FIGURE)
_POD: Mapping[str, Check] = {
    **dict.fromkeys(("namespace", "name", "uid", "held"), _NAME),
    **dict.fromkeys(("share_milli", "memory_mib"), _AMOUNT),
}
_CARD: Mapping[str, Check] = {
    "uuid": _NAME,
    "model": _text(MAX_NAME),
    **dict.fromkeys(("healthy", "cordoned"), _BOOL),
    **dict.fromkeys(("index", "memory_mib", "used_share_milli", "used_memory_mib", "more_pods"), _AMOUNT),
}
_NODE: Mapping[str, Check] = {"name": _NAME, "closed": _text(MAX_TEXT)}
_WAITING: Mapping[str, Check] = {
    **dict.fromkeys(("namespace", "name", "uid", "state", "standing"), _NAME),
    "priority": _PRIORITY,
    "age_ms": _natural(OLDEST_MS),
    "reason": _text(MAX_TEXT),
}


def read_cluster(body: bytes) -> MapPost:
    """Parse the body. Raises a Problem that names the field."""
    raw = read_object(body, ())  # the names of fields are names of pods too
    if raw.get("version") != 1:
        raise bad("version", "it must be 1")
    nodes = [_node(each, f"nodes[{at}]") for at, each in enumerate(_listed(raw, "nodes", "", MAX_NODES))]
    if len({each["name"] for each in nodes}) < len(nodes):
        raise bad("nodes", "each node must appear once")
    gone = _listed(raw, "gone", "", MAX_NODES)
    if not all(_NAME[0](each) for each in gone):
        raise bad("gone", "it must be a list of names")
    waiting, (is_term, sentence) = raw.get("waiting"), _text(MAX_TERM)
    if not is_term(raw.get("term", "")):
        raise bad("term", sentence)
    return {
        "version": 1,
        "nodes": nodes,
        "gone": gone,
        "waiting": None if waiting is None else _waiting(waiting),
        "term": raw.get("term", ""),
    }


def _node(raw: object, where: str) -> MapNode:
    read = _read(raw, where, _NODE)
    cards = []
    for at, each in enumerate(_listed(cast(Json, raw), "cards", where, MAX_CARDS)):
        place = f"{where}.cards[{at}]"
        card = _read(each, place, _CARD)
        pods = _listed(each, "pods", place, MAX_PODS)
        card["pods"] = [_read(pod, f"{place}.pods[{number}]", _POD) for number, pod in enumerate(pods)]
        cards.append(card)
    stranded = _counts(raw, "stranded", where)
    if len(stranded) > MAX_STRANDING:
        raise bad(f"{where}.stranded", f"it must name at most {MAX_STRANDING} namespaces")
    return cast(MapNode, {**read, "cards": cards} | ({"stranded": stranded} if stranded else {}))


def _waiting(raw: object) -> MapWaiting:
    read = _read(raw, "waiting", {"total": _AMOUNT})
    pods = _listed(cast(Json, raw), "pods", "waiting", MAX_WAITING)
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


PATH = "/v1/cluster"
_PAGE, _STEPS = 100, 10
_RIGHT = Right("get", "sessions")


class Mapped(TypedDict):
    """The post is stored."""

    version: Version


class MapTotals(TypedDict):
    """Sums over the nodes with cards of these models. `filled`: the number of nodes by how much of their
    compute is given out: none, up to 10 per cent, and so on to 100."""

    models: str
    nodes: int
    closed: int
    cards: int
    unhealthy: int
    usedMilli: int
    memoryMib: int
    usedMib: int
    filled: list[int]


class NodeOnMap(TypedDict):
    """A node. `posted`: when the extender posted it; pods of namespaces that the caller may not read have
    empty names."""

    name: str
    closed: str
    cards: list[MapCard]
    posted: int


class Stranded(TypedDict):
    """Thousandths of a card that are free and that no pod can use, because this namespace's pods hold the CPU
    or memory beside them. Nothing is charged by it."""

    namespace: str
    milli: int


class ClusterMapAnswer(TypedDict):
    """`posted`: the extender's last post, null: none yet; `totals`: of the requested nodes, by models;
    `nodes`: those that are fullest first; `stranded`: on all nodes or the requested one, of all namespaces or
    of the requested one, the largest first."""

    version: Version
    posted: int | None
    totals: list[MapTotals]
    nodes: list[NodeOnMap]
    stranded: list[Stranded]
    next: Next


class WaitingOnMap(MapWaitingPod):
    """With when it was created."""

    created: NotRequired[int]


class WaitingAnswer(TypedDict):
    """`posted`: when, null: not yet; `total`: how many wait in the requested namespace or in all, null:
    unknown; `pods`: those of them that the extender posted, the ones that wait longest first."""

    version: Version
    posted: int | None
    total: int | None
    pods: list[WaitingOnMap]


POST = ApiRoute(
    "POST",
    PATH,
    "the extender posts the nodes that changed, and what waits",
    None,
    {JSON: Mapped},
    body=MapPost,
    refuses=(409, 413),
    needs="`create bindings` in all namespaces",
)
CLUSTER = ApiRoute(
    "GET",
    PATH,
    "nodes, their cards and the pods on them, the fullest nodes first; of one namespace its nodes",
    _RIGHT,
    {JSON: ClusterMapAnswer},
    (NAMESPACE, NODE, LIMIT, AFTER),
)
WAITING = ApiRoute(
    "GET",
    "/v1/waiting",
    "the pods that are not bound, and why, those that wait longest first; at most 500 of all namespaces",
    _RIGHT,
    {JSON: WaitingAnswer},
    (NAMESPACE,),
)
ROUTES = (POST, CLUSTER, WAITING)


def register(app: Flask, services: Services) -> None:
    """Add the routes."""

    @app.post(PATH)
    def post_cluster() -> Response:
        received_ms = services.clock()
        services.gate.allow(request.headers.get("Authorization"), "create", "bindings")
        posted = read_cluster(read_body())
        with services.ledger.store.writing(turn=cluster_map.TURN) as connection:
            change = posted["nodes"], posted["gone"], posted["waiting"]
            is_recorded = cluster_map.record(connection, *change, received_ms, posted.get("term", ""))
        if not is_recorded:
            raise Problem(409, "another extender leads since: its posts are the map", "term")
        return answer({"version": 1})

    def cluster(call: Call) -> Response:
        return _nodes_answer(services, call)

    def waiting(call: Call) -> Response:
        namespace = call.get("namespace", "")
        with services.ledger.store.reading() as connection:
            found = cluster_map.waiting(connection)
        if found is None:
            return answer({"version": 1, "posted": None, "total": None, "pods": []})
        pods = [
            {**each, "created": found.received_ms - each["age_ms"]}
            for each in found.pods
            if namespace in ("", each["namespace"])
        ]
        total = found.total_of(namespace) if namespace else found.total
        return answer({"version": 1, "posted": found.received_ms, "total": total, "pods": pods})

    serve(app, services, CLUSTER, cluster)
    serve(app, services, WAITING, waiting)


def _nodes_answer(services: Services, call: Call) -> Response:
    """A page of nodes, and the totals of all that are asked for."""
    limit, after = call.get("limit", _PAGE), shaped(call.get("after"), int, str)
    namespace, node = call.get("namespace", ""), call.get("node", "")
    with services.ledger.store.reading() as connection:
        posted_ms = cluster_map.posted_ms(connection)
        found = cluster_map.sums(connection)
        if namespace:
            mine = cluster_map.nodes_of(connection, namespace)
            found = [each for each in found if each.name in mine]
        found = [each for each in found if node in ("", each.name)]
        ordered = sorted(found, key=_place)
        page = [each for each in ordered if after is None or _place(each) > after][: limit + 1]
        bodies = cluster_map.nodes(connection, [each.name for each in page[:limit]])
        stranded = cluster_map.stranded(connection, node)
    follows = cursor(*_place(page[limit - 1])) if len(page) > limit else None
    shown = [{**_shown(bodies[each.name], namespace), "posted": each.received_ms} for each in page[:limit]]
    body = {"version": 1, "posted": posted_ms, "totals": _totals(found), "nodes": shown}
    return answer(body | {"stranded": _stranded(stranded, namespace), "next": follows}, follows)


def _stranded(by_namespace: Mapping[str, int], only: str) -> list[Stranded]:
    listed = sorted(by_namespace.items(), key=lambda each: (-each[1], each[0]))
    return [{"namespace": name, "milli": milli} for name, milli in listed if only in ("", name)]


def _place(node: NodeSums) -> tuple[int, str]:
    """Its place in the answer: from 0, the fullest, on."""
    return _STEPS - _step(node), node.name


def _step(node: NodeSums) -> int:
    """How full it is, in tenths, rounded up."""
    whole = node.cards * WHOLE_MILLI
    return min(_STEPS, -(-_STEPS * node.used_milli // whole)) if whole else 0


def _totals(nodes: Iterable[NodeSums]) -> list[dict[str, Any]]:
    by_models: dict[str, list[NodeSums]] = defaultdict(list)
    for each in nodes:
        by_models[each.models].append(each)
    return [_total(models, listed) for models, listed in sorted(by_models.items())]


def _total(models: str, nodes: list[NodeSums]) -> dict[str, Any]:
    steps = [_step(each) for each in nodes]
    return {
        "models": models,
        "nodes": len(nodes),
        "closed": sum(each.is_closed for each in nodes),
        "cards": sum(each.cards for each in nodes),
        "unhealthy": sum(each.unhealthy for each in nodes),
        "usedMilli": sum(each.used_milli for each in nodes),
        "memoryMib": sum(each.memory_mib for each in nodes),
        "usedMib": sum(each.used_mib for each in nodes),
        "filled": [steps.count(step) for step in range(_STEPS + 1)],
    }


def _shown(node: dict[str, Any], namespace: str) -> dict[str, Any]:
    """The node; for a caller of one namespace, pods of others without their names."""
    if not namespace:
        return node
    hidden = {"namespace": "", "name": "", "uid": ""}
    cards = [
        {
            **card,
            "pods": [pod if pod["namespace"] == namespace else {**pod, **hidden} for pod in card["pods"]],
        }
        for card in node["cards"]
    ]
    stranded = {name: milli for name, milli in node.get("stranded", {}).items() if name == namespace}
    return {**node, "cards": cards} | ({"stranded": stranded} if "stranded" in node else {})
