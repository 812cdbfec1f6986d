"""``/v1/cluster`` and ``/v1/waiting``: nodes with their cards and pods, and the pods that wait, as the
extender posted them last."""

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NotRequired, TypedDict

from flask import Flask, Response, request

from timekeeper.accounts.budget_history import History
from timekeeper.accounts.held.gangs import gangs_as_one
from timekeeper.accounts.held.needs import budget_need
from timekeeper.api import sheets
from timekeeper.api.http.answers import Accepted, Paged, Versioned, answer
from timekeeper.api.http.bodies import Body
from timekeeper.api.http.parameters import AFTER, LIMIT, NAMESPACE, NODE, POD, cursor, shaped
from timekeeper.api.http.routes import JSON, ApiRoute, Call, Right, read_body, serve
from timekeeper.api.http.services import Services
from timekeeper.api.ledger.ledger_reader import stated
from timekeeper.core.texts import KUEUES_GATE, UNPAID
from timekeeper.core.values import WHOLE_MILLI
from timekeeper.runtime.http.problem_details import Problem
from timekeeper.store import cluster_map, held_pods, sessions
from timekeeper.store.cluster_map import NodeSums
from timekeeper.store.decisions import held_queues
from timekeeper.store.engine.engine import Connection
from timekeeper.wire.cluster_map import MapCard, MapPost, MapWaitingPod

BODY = Body(MapPost)


PATH = "/v1/cluster"
_PAGE, _STEPS = 100, 10
_RIGHT = Right("get", "sessions")


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
    empty names. `undescribed`: what it offers where no inventory describes its cards."""

    name: str
    closed: str
    cards: list[MapCard]
    undescribed: NotRequired[str]
    posted: int


class ClusterDefaults(TypedDict):
    """What the timekeeper takes where the cluster decides. `families`: of addresses, that it listens on;
    `targetSessionAttrs`: of its connections to PostgreSQL, null: none, for the address has one host."""

    families: list[str]
    targetSessionAttrs: str | None


class ClusterMapAnswer(Paged):
    """`timekeeper`: what it takes by default; `posted`: the extender's last post, null: none yet; `totals`:
    of the requested nodes, by models; `nodes`: those that are fullest first."""

    timekeeper: ClusterDefaults
    posted: int | None
    totals: list[MapTotals]
    nodes: list[NodeOnMap]


class WaitingOnMap(MapWaitingPod, frozen=True, kw_only=True):
    """With when it was created."""

    created: int


class WaitingAnswer(Versioned):
    """`posted`: when, null: not yet; `total`: how many wait in the requested namespace or in all, null:
    unknown; `pods`: those of them that the extender posted, the ones that wait longest first;
    `placement`: `off` where pods of the namespace, or of one without an entry, keep their scheduler."""

    posted: int | None
    total: int | None
    pods: list[WaitingOnMap]
    placement: str


POST = ApiRoute(
    method="POST",
    path=PATH,
    about="the extender posts the nodes that changed, and what waits",
    right=None,
    answers={JSON: Accepted},
    body=BODY,
    refuses=(409,),
    needs="`create bindings` in all namespaces",
)
CLUSTER = ApiRoute(
    path=PATH,
    about="nodes, their cards and the pods on them, the fullest nodes first; of one namespace its nodes",
    right=_RIGHT,
    answers={JSON: ClusterMapAnswer},
    parameters=(NAMESPACE, NODE, LIMIT, AFTER),
    sheet=sheets.MAP,
)
WAITING = ApiRoute(
    path="/v1/waiting",
    about="the pods that are not bound, and why, those that wait longest first; at most 500 of all"
    " namespaces",
    right=_RIGHT,
    answers={JSON: WaitingAnswer},
    parameters=(NAMESPACE, POD),
    sheet=sheets.WAITING,
)
ROUTES = (POST, CLUSTER, WAITING)


def register(app: Flask, services: Services) -> None:
    """Add the routes."""

    @app.post(PATH)
    def post_cluster() -> Response:
        received_ms = services.clock()
        services.gate.allow(request.headers.get("Authorization"), "create", "bindings")
        posted = BODY.read(read_body())
        with services.ledger.store.writing(turn=cluster_map.TURN) as connection:
            is_recorded = cluster_map.record(connection, posted, received_ms)
        if not is_recorded:
            raise Problem(409, "another extender leads since: its posts are the map", "term")
        return answer(Accepted(version=1))

    def cluster(call: Call) -> Response:
        return _nodes_answer(services, call)

    def waiting(call: Call) -> Response:
        namespace = call.get("namespace", "")
        with services.ledger.store.reading() as connection:
            found = cluster_map.waiting(connection)
            now_ms, history = services.ledger.moment(connection)
            needs = _needs(connection, history, namespace, now_ms) if found is not None else {}
            waiting = found.pods if found is not None else ()
            queued = {pod["namespace"] for pod in waiting if KUEUES_GATE in pod["reason"]}
            held = held_queues(connection, queued)
        own = history.budget(namespace, now_ms).budget.placement if namespace else ""
        placement = own or history.settings(now_ms).placement
        if found is None:
            return answer(WaitingAnswer(version=1, placement=placement, posted=None, total=None, pods=[]))
        pods: list[Any] = [
            {**each, "created": found.received_ms - each["age_ms"]}
            for each in found.pods
            if namespace in ("", each["namespace"])
        ]
        pods = [{**pod, "reason": _with_need(pod["reason"], needs.get(pod["uid"], ""))} for pod in pods]
        for pod in pods:
            if KUEUES_GATE in pod["reason"]:
                said = (text.rstrip(".") for (of, _), text in held.items() if of == pod["namespace"])
                pod["reason"] = "; ".join((pod["reason"], *said))
        total = found.total_of(namespace) if namespace else found.total
        if name := call.get("pod"):
            is_whole, pods = total == len(pods), [each for each in pods if each["name"] == name]
            total = len(pods) if is_whole else None
        posted = found.received_ms
        return answer(WaitingAnswer(version=1, placement=placement, posted=posted, total=total, pods=pods))

    serve(app, services, CLUSTER, cluster)
    serve(app, services, WAITING, waiting)


def _needs(connection: Connection, history: History, namespace: str, now_ms: int) -> dict[str, str]:
    """By UID, what the budget lacks for held pods, of which those of a gang are one."""
    pods = held_pods.held(connection, namespace)
    lookahead_ms = history.settings(now_ms).lookahead_ms
    accounts = stated(connection, history, {pod.namespace for pod in pods}) if pods else {}
    found: dict[tuple[str, str], str] = {}
    for pod, _ in gangs_as_one(pods):
        need = budget_need(pod, accounts[pod.namespace], lookahead_ms, now_ms)
        if need is not None and need.missing:
            found[pod.namespace, pod.released_with] = f"needs {'; '.join(need.texts())}"
    return {pod.uid: found.get((pod.namespace, pod.released_with), "") for pod in pods}


def _with_need(reason: str, need: str) -> str:
    """In place of what the extender, which knows no amounts, says of it."""
    if not need:
        return reason
    if UNPAID in reason:
        return re.sub(f"[0-9]+ {UNPAID}", lambda _: need, reason)
    return f"{reason}; {need}" if reason else need


def _nodes_answer(services: Services, call: Call) -> Response:
    """A page of nodes, and the totals of all that are asked for."""
    limit, after = call.get("limit", _PAGE), shaped(call.get("after"), int, str)
    namespace, node = call.get("namespace", ""), call.get("node", "")
    with services.ledger.store.reading() as connection:
        posted_ms = cluster_map.posted_ms(connection)
        found = cluster_map.sums(connection)
        if namespace:
            mine = sessions.nodes_of(connection, namespace, services.ledger.moment(connection)[0])
            found = [each for each in found if each.name in mine]
        found = [each for each in found if node in ("", each.name)]
        ordered = sorted(found, key=_place)
        page = [each for each in ordered if after is None or _place(each) > after][: limit + 1]
        bodies = cluster_map.nodes(connection, [each.name for each in page[:limit]])
    follows = cursor(*_place(page[limit - 1])) if len(page) > limit else None
    body: ClusterMapAnswer = {
        "version": 1,
        "timekeeper": {
            "families": list(services.families),
            "targetSessionAttrs": services.ledger.store.session_attributes or None,
        },
        "posted": posted_ms,
        "totals": _totals(found),
        "nodes": [_shown(bodies[node.name], node.received_ms, namespace) for node in page[:limit]],
        "next": follows,
    }
    return answer(body, follows)


def _place(node: NodeSums) -> tuple[int, str]:
    """Its place in the answer: from 0, the fullest, on."""
    return _STEPS - _step(node), node.name


def _step(node: NodeSums) -> int:
    """How full it is, in tenths, rounded up."""
    whole = node.cards * WHOLE_MILLI
    return min(_STEPS, -(-_STEPS * node.used_milli // whole)) if whole else 0


def _totals(nodes: Iterable[NodeSums]) -> list[MapTotals]:
    by_models: dict[str, list[NodeSums]] = defaultdict(list)
    for each in nodes:
        by_models[each.models].append(each)
    return [_total(models, listed) for models, listed in sorted(by_models.items())]


def _total(models: str, nodes: list[NodeSums]) -> MapTotals:
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


def _shown(node: dict[str, Any], posted_ms: int, namespace: str) -> Any:
    """The node; for a caller of one namespace, pods of others without their names."""
    node = {**node, "posted": posted_ms}
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
    return {**node, "cards": cards}
