"""``/v1/nodeusage``: node agents' measurements of pods and cards; ``/v1/overuse``: pods that use more memory
than they were given. The token alone identifies the agent's node."""

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
from timekeeper.api.http.routes import JSON, ApiRoute, Call, Right, serve
from timekeeper.api.http.services import Services
from timekeeper.api.resources.heartbeats import carries_the_ca
from timekeeper.core.wire import MeasuredCards, NodeUsage, NodeUsageAnswer
from timekeeper.store.engine.engine import ConflictError, UnavailableError
from timekeeper.store.writes import node_usage
from timekeeper.store.writes.node_usage import NodeReport, ReportResult

PATH = "/v1/nodeusage"

REPORT = ApiRoute(
    "POST",
    PATH,
    "a node agent reports its pods' use; requires the token of the agent's pod",
    None,
    {JSON: NodeUsageAnswer},
    body=NodeUsage,
    refuses=(413,),
    needs="`create nodeusage` of the node that the token names",
)
MEASURED = ApiRoute(
    "GET",
    PATH,
    "the use of each node's cards during the last two minutes",
    Right("get", "nodeusage"),
    {JSON: MeasuredCards},
)


class OverCard(TypedDict):
    """A card of which the pod uses more memory than it was given, in MiB."""

    uuid: str
    memory_mib: int
    share_mib: int


class OverPod(TypedDict):
    """A pod over its memory share. `since`: the first report of this overuse; `seen`: the last one (a report
    may lack figures)."""

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


OVERUSE = ApiRoute(
    "GET",
    "/v1/overuse",
    "pods that use more memory of a card than their share, as node agents measure it",
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
        report = NodeReport(node, looks.boot, looks.sequence, received_ms, looks.looks)
        interval_ms = _record(services, report)
        body: NodeUsageAnswer = {"version": 1, "interval_ms": interval_ms}
        ca = services.ca() if carries_the_ca(report.sequence, interval_ms) else ""
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
    """Write a report; returns when the agent reports next. Raises UnavailableError: the agent keeps the
    report and retries."""
    try:
        with services.ledger.store.writing() as connection:
            interval_ms = report_interval_ms(node_usage.reporting(connection, report.received_ms))
            history = services.ledger.history(connection)
            below_milli = history.settings(report.received_ms).idle_below_milli
            outcome = node_usage.record(connection, report, interval_ms, below_milli)
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
