"""``/v1/cluster`` and ``/v1/waiting``: nodes with their cards and pods, and the pods that wait, as the
extender posted them last; ``/v1/free``: what is free, as the settler saw it; ``/v1/cards``: cards by the
hour, as it counted them."""

import re
from datetime import date
from typing import Any, NotRequired, TypedDict

import msgspec
from flask import Flask, Response, request

from timekeeper.accounts.budget_history import History
from timekeeper.accounts.changes import NEVER
from timekeeper.accounts.held.gangs import gangs_as_one
from timekeeper.accounts.held.needs import budget_need
from timekeeper.api import sheets
from timekeeper.api.http.answers import Accepted, Paged, Span, Versioned, answer, tagged
from timekeeper.api.http.bodies import Body
from timekeeper.api.http.parameters import (
    AFTER,
    FROM,
    LIMIT,
    NAMESPACE,
    NODE,
    POD,
    SELECTOR,
    TO,
    cursor,
    shaped,
    start_ms,
)
from timekeeper.api.http.parameters import SUBJECT_AS_NAMESPACE as SUBJECT
from timekeeper.api.http.routes import JSON, ApiRoute, Call, Right, read_body, serve
from timekeeper.api.http.services import Services
from timekeeper.api.ledger.ledger_reader import held_of, stated
from timekeeper.api.ledger.recent_value import RecentValues, oldest_ms
from timekeeper.core.cluster_map import NO_END, OF_DEVICES, not_before
from timekeeper.core.free_cards import by_model
from timekeeper.core.ledger.metering import Interval
from timekeeper.core.texts import KUEUES_GATE, UNPAID
from timekeeper.core.values import WHOLE_MILLI
from timekeeper.runtime.http.problem_details import Problem, bad
from timekeeper.store import cluster_map, role_findings, sessions
from timekeeper.store.cluster_map import NodeSums
from timekeeper.store.decisions import held_queues
from timekeeper.store.engine.engine import Connection
from timekeeper.store.engine.schema import DAY_MS, HOUR_MS
from timekeeper.store.ledger import pulse as read_pulse
from timekeeper.store.role_findings import NOT_SEEN
from timekeeper.wire.cluster_map import MapCard, MapPost, MapWaitingPod

BODY = Body(MapPost)


PATH = "/v1/cluster"
_PAGE, _STEPS = 100, 10
_TWO_WEEKS_MS, _MOST_HOURS = 14 * DAY_MS, 10_000
_KEPT = 4  # times of which callers accept an older answer
_RIGHT = Right("get", "sessions")


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
    """`timekeeper`: what it takes by default; `posted`: the extender's last post, null: none yet;
    `nodes`: those that are fullest first."""

    timekeeper: ClusterDefaults
    posted: int | None
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


class CardHour(TypedDict):
    """Means of whole cards, in thousandths, over the `known` milliseconds in which they were counted. A MIG
    instance is its part of a card. `model`: empty for what is of no certain model; in every hour there is
    such a row."""

    hour: int
    known: int
    model: str
    heldMilli: int
    freeMilli: int
    waitingMilli: int


class CardHours(Span, Versioned):
    """`hours`: those in which cards were counted, by model; of others nothing is known."""

    hours: list[CardHour]


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
    right=Right("get", "sessions", by_members=True),
    answers={JSON: WaitingAnswer},
    parameters=(SUBJECT, POD),
    sheet=sheets.WAITING,
)


class FreeOfModel(TypedDict):
    """A model; a MIG instance, a replica, and a device of claims count as cards. `whole`: how many are free;
    `partMilli`: what is free of others, in thousandths of a card; `takes`: by a number of whole cards, on
    how many nodes they are free; `cordoned`, `unhealthy`, `excluded`: cards that are not
    given out, `excluded` those of nodes that the extender has closed."""

    model: str
    nodes: int
    cards: int
    whole: int
    partMilli: int
    takes: dict[str, int]
    cordoned: int
    unhealthy: int
    excluded: int


class FreeAnswer(Versioned):
    """`asOf`: when the settler looked last, null: not yet; `vague`: pods that hold cards of which their
    node's plugin alone knows which, so that at least `whole` and `takes` are free."""

    asOf: int | None
    models: list[FreeOfModel]
    vague: int


FREE = ApiRoute(
    path="/v1/free",
    about="cards that are free, by model, on all nodes, whatever the namespace",
    right=_RIGHT,
    answers={JSON: FreeAnswer},
    parameters=(NAMESPACE, SELECTOR),
    sheet=sheets.FREE,
)
CARDS = ApiRoute(
    path="/v1/cards",
    about="cards that are held, free and waited for, by UTC hour and model, of the cluster; without a time"
    " range, of the last two weeks",
    right=_RIGHT,
    answers={JSON: CardHours},
    parameters=(FROM, TO, NAMESPACE),
)
ROUTES = (POST, CLUSTER, WAITING, FREE, CARDS)


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

    recent = RecentValues[bytes](_KEPT)

    def cards(call: Call) -> Response:
        key, oldest = (call.get("from"), call.get("to")), oldest_ms(request.cache_control.max_age)
        body = recent.get(key, lambda: msgspec.json.encode(_card_hours(services, *key)), oldest)
        return tagged(Response(body, content_type=JSON))

    def waiting(call: Call) -> Response:
        namespace = call.get("namespace", "")
        with services.ledger.store.reading() as connection:
            found = cluster_map.waiting(connection)
            now_ms, history = services.ledger.moment(connection)
            needs = _needs(connection, history, namespace, now_ms) if found is not None else {}
            of_devices = found is not None and any(pod.get("when") == OF_DEVICES for pod in found.pods)
            devices = when_devices(connection) if of_devices else ""
            waiting = found.pods if found is not None else ()
            queued = {pod["namespace"] for pod in waiting if KUEUES_GATE in pod["reason"]}
            held = held_queues(connection, queued)
        own = history.budget(namespace, now_ms).budget.placement if namespace else ""

        def is_its(name: str) -> bool:
            return history.covers(namespace, name, now_ms)

        placement = own or history.settings(now_ms).placement
        if found is None:
            return answer(WaitingAnswer(version=1, placement=placement, posted=None, total=None, pods=[]))
        pods: list[Any] = [
            {**each, "created": found.received_ms - each["age_ms"]}
            for each in found.pods
            if is_its(each["namespace"])
        ]
        pods = [{**pod, "reason": _with_need(pod["reason"], needs.get(pod["uid"], ""))} for pod in pods]
        pods = [{**pod, "when": devices} if pod.get("when") == OF_DEVICES else pod for pod in pods]
        for pod in pods:
            if KUEUES_GATE in pod["reason"]:
                said = (text.rstrip(".") for (of, _), text in held.items() if of == pod["namespace"])
                pod["reason"] = "; ".join((pod["reason"], *said))
        total = found.total_of(namespace, is_its) if namespace else found.total
        if name := call.get("pod"):
            is_whole, pods = total == len(pods), [each for each in pods if each["name"] == name]
            total = len(pods) if is_whole else None
        posted = found.received_ms
        return answer(WaitingAnswer(version=1, placement=placement, posted=posted, total=total, pods=pods))

    known = NOT_SEEN

    def free(call: Call) -> Response:
        nonlocal known
        with services.ledger.store.reading() as connection:
            known = role_findings.free(connection, known)
            pulse = read_pulse(connection) or NEVER
        wanted = call.get("labelSelector", {}).items()
        nodes = [each for each in known.nodes if wanted <= dict(each[0].labels).items()]
        models: list[Any] = by_model(nodes)
        vague = sum(count * node.vague for node, count in nodes)
        as_of = pulse.decided_ms if known.at_ms else None
        return answer(FreeAnswer(version=1, asOf=as_of, models=models, vague=vague))

    serve(app, services, CLUSTER, cluster)
    serve(app, services, FREE, free)
    serve(app, services, WAITING, waiting)
    serve(app, services, CARDS, cards)


def when_devices(connection: Connection) -> str:
    """When a device of claims may be free, in words; "": one is."""
    from_ms = role_findings.free(connection).devices_ms
    return not_before(from_ms) if from_ms > 0 else NO_END if from_ms == 0 else ""


def _needs(connection: Connection, history: History, namespace: str, now_ms: int) -> dict[str, str]:
    """By UID, what the budget lacks for held pods, of which those of a gang are one."""
    pods = held_of(connection, history, namespace, now_ms)
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


def _card_hours(services: Services, since: int | date | None, until: int | date | None) -> CardHours:
    zone = str(services.ledger.zone())
    end_ms = start_ms(until, zone) or services.clock()
    begin_ms = start_ms(since, zone) or end_ms - _TWO_WEEKS_MS
    if not 0 < end_ms - begin_ms <= _MOST_HOURS * HOUR_MS:
        raise bad("from", f"it must be before to, by at most {_MOST_HOURS:,} hours")
    with services.ledger.store.reading() as connection:
        rows = cluster_map.card_hours(connection, Interval(begin_ms, end_ms))
    known = {row.hour_ms: row.known_ms for row in rows if not row.model}
    hours: list[CardHour] = [
        {
            "hour": row.hour_ms,
            "known": known[row.hour_ms],
            "model": row.model,
            "heldMilli": round(row.held / known[row.hour_ms]),
            "freeMilli": round(row.free / known[row.hour_ms]),
            "waitingMilli": round(row.waiting / known[row.hour_ms]),
        }
        for row in rows
    ]
    return {"version": 1, "from": begin_ms, "to": end_ms, "hours": hours}


def _nodes_answer(services: Services, call: Call) -> Response:
    """A page of nodes."""
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
