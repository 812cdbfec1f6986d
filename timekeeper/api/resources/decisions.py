"""``/v1/decisions``: what was decided about pods and budgets; webhook and extender report theirs."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import TypedDict

from flask import Flask, Response, request

from timekeeper import metrics
from timekeeper.accounts.budget_history import History, is_group
from timekeeper.accounts.decisions.sentences import sentence, without_other
from timekeeper.api import sheets
from timekeeper.api.http.answers import Accepted, Paged, answer
from timekeeper.api.http.bodies import Body
from timekeeper.api.http.parameters import (
    AFTER,
    FROM,
    KIND,
    LIMIT,
    OWNER,
    POD,
    REASON,
    SUBJECT_AS_NAMESPACE,
    TO,
    UID,
    cursor,
    shaped,
    start_ms,
)
from timekeeper.api.http.routes import JSON, ApiRoute, Call, Right, admit, may, read_body, serve
from timekeeper.api.http.services import Services
from timekeeper.core.decisions import OTHER_NAMESPACE, Decision, DecisionRun
from timekeeper.store import decisions
from timekeeper.store.decisions import DecisionFilter, DecisionRow, page
from timekeeper.wire.decisions import DecisionEntry, Decisions

BODY = Body(Decisions)


def _run(entry: DecisionEntry, received_ms: int) -> DecisionRun:
    decision = Decision(
        at_ms=received_ms - entry.first_age_ms,
        kind=entry.kind,
        reason=entry.reason,
        namespace=entry.namespace,
        figures=entry.figures,
        owner=entry.owner,
        name=entry.name,
        generate_name=entry.generate_name,
        uid=entry.uid,
        budget=entry.budget,
    )
    return DecisionRun(decision, entry.count, received_ms - entry.last_age_ms)


PATH = "/v1/decisions"
READ = Right("get", "decisions")
_PAGE = 1_000


class DecisionAnswer(TypedDict):
    """Equal decisions in succession. `pod`: empty where the pod had no name yet, or where the decision is
    about the namespace; `generateName`: of a pod without a name; `budget`: key of the budget entry in force,
    of the group where its account decided, and from when (milliseconds since 1970); `first`, `last`: when the
    first and the last of `count` decisions were taken; `sentence`: for people."""

    id: int
    source: str
    kind: str
    reason: str
    namespace: str
    owner: str
    pod: str
    generateName: str
    uid: str
    budget: str
    figures: dict[str, int | str]
    count: int
    first: int
    last: int
    sentence: str


class DecisionsAnswer(Paged):
    """Decisions, the newest first by `last`."""

    decisions: list[DecisionAnswer]


REPORT = ApiRoute(
    method="POST",
    path=PATH,
    about="webhook and extender report what they decided, and why",
    right=None,
    answers={JSON: Accepted},
    body=BODY,
    needs="`create decisions` in all namespaces",
)
LIST = ApiRoute(
    path=PATH,
    about="what was decided about pods and budgets, and why; the newest first",
    right=READ,
    answers={JSON: DecisionsAnswer},
    parameters=(SUBJECT_AS_NAMESPACE, POD, OWNER, UID, KIND, REASON, FROM, TO, LIMIT, AFTER),
    sheet=sheets.DECISIONS,
)
ROUTES = (LIST, REPORT)


def register(app: Flask, services: Services) -> None:
    """Add the routes."""

    def list_all(call: Call) -> Response:
        limit, after = call.get("limit", _PAGE), shaped(call.get("after"), int, int)
        zone = services.ledger.calendar()[0]
        which = DecisionFilter(
            namespace=call.get("namespace", ""),
            subject=call.get("pod", ""),
            owners=(call.get("owner"),) if call.get("owner") else (),
            uid=call.get("uid", ""),
            kind=call.get("kind", ""),
            reason=call.get("reason", ""),
            from_ms=start_ms(call.get("from"), zone),
            to_ms=start_ms(call.get("to"), zone),
            before=(after[0], after[1]) if after else None,
        )
        with services.ledger.store.reading() as connection:
            history = services.ledger.history(connection)
            found = page(connection, which, limit + 1)
        follows = _place(found[limit - 1]) if len(found) > limit else None
        visible = visible_to(services, which.namespace)
        listed = [shown(each, history, visible) for each in found[:limit]]
        return answer(DecisionsAnswer(version=1, decisions=listed, next=follows), follows)

    serve(app, services, LIST, list_all)

    @app.post(PATH)
    def record_decisions() -> Response:
        received_ms = services.clock()
        services.gate.allow(request.headers.get("Authorization"), "create", "decisions")
        posted = BODY.read(read_body())
        runs = [_run(entry, received_ms) for entry in posted.decisions]
        with services.ledger.store.writing() as connection:
            decisions.record(connection, posted.source, runs)
        metrics.DECISIONS.labels(posted.source).inc(sum(run.count for run in runs))
        return answer(Accepted(version=1))


def _place(row: DecisionRow) -> str:
    return cursor(row.run.last_ms, row.number)


def reader_of(services: Services, namespace: str) -> Callable[[str], bool]:
    """Whether the caller, who may read decisions of ``namespace`` ("": of all), may read those of another. Of
    each it is asked once."""
    return cache(lambda other: namespace in ("", other) or may(lambda: admit(services, READ, other)))


def visible_to(services: Services, namespace: str) -> Callable[[Decision], Decision]:
    """The decision as the caller may see it. Pods of other namespaces keep their names only if the caller may
    read decisions there."""
    may_read = reader_of(services, namespace)

    def visible(decision: Decision) -> Decision:
        other = decision.figures.get(OTHER_NAMESPACE)
        if other is None or may_read(str(other)):
            return decision
        return replace(decision, figures=without_other(decision.figures))

    return visible


def _account(decision: Decision) -> str:
    """The group, where its account decided, else the namespace."""
    key = decision.budget.partition("@")[0]
    return key if is_group(key) else decision.namespace


def shown(row: DecisionRow, history: History, visible: Callable[[Decision], Decision]) -> DecisionAnswer:
    """The record as it is answered."""
    decision = visible(row.run.decision)
    return {
        "id": row.number,
        "source": row.source,
        "kind": decision.kind,
        "reason": decision.reason,
        "namespace": decision.namespace,
        "owner": decision.owner,
        "pod": decision.name,
        "generateName": decision.generate_name,
        "uid": decision.uid,
        "budget": history.version(_account(decision), row.run.last_ms) or decision.budget,
        "figures": dict(decision.figures),
        "count": row.run.count,
        "first": decision.at_ms,
        "last": row.run.last_ms,
        "sentence": sentence(decision),
    }
