"""``/v1/nodeusage``: what nodes' agents measure of their pods and cards, and ``/v1/overuse``: who uses more
memory than he was given. Which node an agent speaks for stands in its token alone."""

from dataclasses import asdict
from typing import Any, TypedDict

import orjson
from flask import Flask, Response, request

from timekeeper import metrics
from timekeeper.accounts.card_use.overuse import OverusingPod
from timekeeper.accounts.intervals import report_interval_ms
from timekeeper.api.bodies.node_usage import read_node_usage
from timekeeper.api.http.answers import CONTENT_TYPE, Version, answer, tagged
from timekeeper.api.http.body import read_body
from timekeeper.api.http.parameters import NAMESPACE
from timekeeper.api.http.routes import JSON, Call, Right, Route, serve
from timekeeper.api.http.services import Services
from timekeeper.api.resources.heartbeats import is_told_the_ca
from timekeeper.core.wire import MeasuredCards, NodeUsage, NodeUsageAnswer
from timekeeper.store.engine.engine import ConflictError, UnavailableError
from timekeeper.store.writes import node_usage
from timekeeper.store.writes.node_usage import NodeReport, ReportResult

PATH = "/v1/nodeusage"

REPORT = Route(
    "POST",
    PATH,
    "a node's agent says what its pods use; for the token of the agent's pod",
    None,
    {JSON: NodeUsageAnswer},
    body=NodeUsage,
    refuses=(413,),
    needs="`create nodeusage` of the node that the token names",
)
MEASURED = Route(
    "GET",
    PATH,
    "how much each card of each node is used, of the last two minutes",
    Right("get", "nodeusage"),
    {JSON: MeasuredCards},
)


class OverCard(TypedDict):
    """A card of which a pod uses more memory than it was given, MiB."""

    uuid: str
    memory_mib: int
    share_mib: int


class OverPod(TypedDict):
    """A pod over its memory share by its node's reports. `since`: when a report saw it so first, and none
    since has seen it otherwise; `seen`: when one saw it so last, for some tell nothing."""

    uid: str
    namespace: str
    pod: str
    node: str
    since: int
    seen: int
    cards: list[OverCard]


class Overuse(TypedDict):
    """The pods over their memory share, by UID."""

    version: Version
    pods: list[OverPod]


OVERUSE = Route(
    "GET",
    "/v1/overuse",
    "the pods that use more memory of a card than they were given, by the nodes' agents",
    Right("get", "sessions"),
    {JSON: Overuse},
    (NAMESPACE,),
)
ROUTES = (REPORT, MEASURED, OVERUSE)


def register(app: Flask, services: Services) -> None:
    """Add the routes."""

    @app.post(PATH)
    def report() -> Response:
        received_ms = services.clock()
        authorization = request.headers.get("Authorization")
        node = services.gate.node(authorization)
        services.gate.allow(authorization, "create", "nodeusage", name=node)
        looks = read_node_usage(read_body())
        told = NodeReport(node, looks.boot, looks.sequence, received_ms, looks.looks)
        interval_ms = _record(services, told)
        body: NodeUsageAnswer = {"version": 1, "interval_ms": interval_ms}
        ca = services.ca() if is_told_the_ca(told.sequence, interval_ms) else ""
        if ca:
            body["ca"] = ca
        return Response(orjson.dumps(body), content_type=CONTENT_TYPE)

    def measured(_call: Call) -> Response:
        with services.ledger.store.reading() as connection:
            found = node_usage.measured(connection, services.clock())
        nodes = {name: orjson.Fragment(cards) for name, cards in found}
        return tagged(Response(orjson.dumps({"version": 1, "nodes": nodes}), content_type=CONTENT_TYPE))

    def overuse(call: Call) -> Response:
        with services.ledger.store.reading() as connection:
            found = node_usage.over(connection, call.get("namespace", ""), services.clock())
        return answer({"version": 1, "pods": [_shown(each) for each in found]})

    serve(app, services, MEASURED, measured)
    serve(app, services, OVERUSE, overuse)


def _record(services: Services, report: NodeReport) -> int:
    """Write a report; when its agent shall report next. Raises UnavailableError: the agent keeps it and tries
    again."""
    try:
        with services.ledger.store.writing() as connection:
            interval_ms = report_interval_ms(node_usage.reporting(connection, report.received_ms))
            outcome = node_usage.record(connection, report, interval_ms)
    except ConflictError as error:
        raise UnavailableError(str(error)) from error
    _count(outcome)
    return interval_ms


def _count(outcome: ReportResult) -> None:
    metrics.NODE_REPORTS.labels(outcome.taken.value).inc()
    for reason, pods in (("on another node", outcome.elsewhere), ("no session", outcome.unknown)):
        if pods:
            metrics.NODE_STRAYS.labels(reason).inc(pods)


def _shown(over: OverusingPod) -> dict[str, Any]:
    return {
        "uid": over.uid,
        "namespace": over.namespace,
        "pod": over.name,
        "node": over.node,
        "since": over.episode.since_ms,
        "seen": over.episode.seen_ms,
        "cards": [asdict(each.excess) for each in over.episode.cards],
    }
