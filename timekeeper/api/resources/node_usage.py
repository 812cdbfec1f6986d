"""``/v1/nodeusage``: node agents' measurements of pods and cards; ``/v1/overuse``: pods that use more memory
than they were given; ``/v1/idle``: pods that hardly use their cards. The token alone identifies the agent's
node."""

from typing import TypedDict

import msgspec
from flask import Flask, Response, request
from msgspec import Raw

from timekeeper import metrics
from timekeeper.accounts.budget_history import is_group
from timekeeper.accounts.card_use.figures import CardSample, MemoryExcess, UsageSample
from timekeeper.accounts.card_use.idleness import IdlePod
from timekeeper.accounts.card_use.overuse import OverusingPod
from timekeeper.api.http.answers import CONTENT_TYPE, Versioned, answer
from timekeeper.api.http.bodies import Body
from timekeeper.api.http.parameters import NAMESPACE, SUBJECT_AS_NAMESPACE
from timekeeper.api.http.routes import JSON, ApiRoute, Call, Right, read_body, serve
from timekeeper.api.http.services import Services
from timekeeper.api.ledger.intervals import report_interval_ms
from timekeeper.api.resources.heartbeats import carries_the_ca
from timekeeper.store import node_usage
from timekeeper.store.engine.engine import ConflictError, UnavailableError
from timekeeper.store.node_usage import NodeReport, PrometheusState, ReportResult
from timekeeper.wire.node_usage import CardUse, MeasuredCards, NodeUsage, NodeUsageAnswer, Use

BODY = Body(NodeUsage)


def _look(use: Use) -> UsageSample:
    pods = tuple([(pod.uid, _cards(pod.cards)) for pod in use.pods])
    return UsageSample(use.age_ms, pods, _cards(use.cards))


def _cards(cards: list[CardUse]) -> tuple[CardSample, ...]:
    return tuple([CardSample(card.uuid, card.utilisation, card.memory_mib, exclusive=True) for card in cards])


PATH = "/v1/nodeusage"

REPORT = ApiRoute(
    method="POST",
    path=PATH,
    about="a node agent reports its pods' use; requires the token of the agent's pod",
    right=None,
    answers={JSON: NodeUsageAnswer},
    body=BODY,
    needs="`create nodeusage` of the node that the token names",
)
MEASURED = ApiRoute(
    path=PATH,
    about="the use of each node's cards during the last two minutes",
    right=Right("get", "nodeusage"),
    answers={JSON: MeasuredCards},
)


class MeasuredPod(TypedDict):
    """A pod, and since when measurements show it."""

    uid: str
    namespace: str
    pod: str
    node: str
    since: int
    seen: int


class OverPod(MeasuredPod):
    """A pod over its memory share. `since`: the first report of this overuse; `seen`: the last one (a report
    may lack figures)."""

    cards: list[MemoryExcess]


class Overuse(Versioned):
    """The pods over their memory share, by UID."""

    pods: list[OverPod]


OVERUSE = ApiRoute(
    path="/v1/overuse",
    about="pods that use more memory of a card than their share, as node agents measure it",
    right=Right("get", "sessions"),
    answers={JSON: Overuse},
    parameters=(NAMESPACE,),
)


class IdlePodAnswer(MeasuredPod):
    """A pod that uses less than `below` of what it holds. `since`: the first measurement of this idle time;
    `seen`: the last one."""


class PrometheusAnswer(TypedDict):
    """How the last question to Prometheus went. `asked`: when; `heard`: its last usable answer, null: none;
    `measured`: the number of metered pods with a figure; `findings`: what was left out of it, and what is
    missing."""

    asked: int
    heard: int | None
    measured: int
    findings: list[str]


class Idle(Versioned):
    """The pods that use less than `below` of what they hold of each of their cards, by UID. `after`:
    idleAfter of the settings, in milliseconds; `below`: idleBelow, in thousandths; `prometheus`: null:
    nothing asks one."""

    after: int
    below: int
    pods: list[IdlePodAnswer]
    prometheus: PrometheusAnswer | None


IDLE = ApiRoute(
    path="/v1/idle",
    about="pods that use less than `idleBelow` of what they hold, as node agents, and Prometheus, measure it",
    right=Right("get", "sessions", by_members=True),
    answers={JSON: Idle},
    parameters=(SUBJECT_AS_NAMESPACE,),
)
ROUTES = (REPORT, MEASURED, OVERUSE, IDLE)


def register(app: Flask, services: Services) -> None:
    """Add the routes."""

    @app.post(PATH)
    def report() -> Response:
        received_ms = services.clock()
        authorization = request.headers.get("Authorization")
        node = services.gate.node(authorization)
        services.gate.allow(authorization, "create", "nodeusage", name=node)
        post = BODY.read(read_body())
        looks = tuple(map(_look, post.uses))
        report = NodeReport(node, post.boot, post.sequence, received_ms, looks)
        interval_ms = _record(services, report)
        ca = services.ca() if carries_the_ca(report.sequence, interval_ms) else ""
        body = msgspec.json.encode(NodeUsageAnswer(1, interval_ms, ca))
        return Response(body, content_type=CONTENT_TYPE)

    def measured(_call: Call) -> Response:
        with services.ledger.store.reading() as connection:
            found = node_usage.measured(connection, services.clock())
        return answer({"version": 1, "nodes": {name: Raw(cards) for name, cards in found}})

    def overuse(call: Call) -> Response:
        with services.ledger.store.reading() as connection:
            found = node_usage.over(connection, call.get("namespace", ""), services.clock())
        return answer(Overuse(version=1, pods=list(map(_shown, found))))

    def idle(call: Call) -> Response:
        return answer(idle_pods(services, call.get("namespace", "")))

    serve(app, services, IDLE, idle)
    serve(app, services, MEASURED, measured)
    serve(app, services, OVERUSE, overuse)


def idle_pods(services: Services, subject: str = "") -> Idle:
    """The pods of the namespace, of a group's, or of all, that are idle now."""
    ledger = services.ledger
    with ledger.store.reading() as connection:
        now_ms, history = ledger.moment(connection)
        settings = history.settings(now_ms)
        found = node_usage.idle(connection, now_ms, "" if is_group(subject) else subject)
        measuring = node_usage.measuring(connection, now_ms)
    return {
        "version": 1,
        "after": settings.idle_after_ms,
        "below": settings.idle_below_milli,
        "pods": [
            _pod(pod, pod.period.since_ms, pod.period.seen_ms)
            for pod in found
            if history.covers(subject, pod.namespace, now_ms)
        ],
        "prometheus": _measuring(measuring) if measuring else None,
    }


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


def _pod(pod: IdlePod | OverusingPod, since_ms: int, seen_ms: int) -> MeasuredPod:
    return {
        "uid": pod.uid,
        "namespace": pod.namespace,
        "pod": pod.name,
        "node": pod.node,
        "since": since_ms,
        "seen": seen_ms,
    }


def _measuring(state: PrometheusState) -> PrometheusAnswer:
    return {
        "asked": state.asked_ms,
        "heard": state.heard_ms or None,
        "measured": state.measured,
        "findings": list(state.findings),
    }


def _shown(over: OverusingPod) -> OverPod:
    pod = _pod(over, over.episode.since_ms, over.episode.seen_ms)
    return {**pod, "cards": [card.excess for card in over.episode.cards]}
