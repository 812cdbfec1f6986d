"""The three routes of kubernetes-gpusharing's timekeeper, so that its sidecars and scripts keep working.

Amounts are GPU-minutes as JSON numbers, for display. The ledger itself holds only integers.
"""

from collections.abc import Mapping
from typing import Annotated, Any, NotRequired, TypedDict

import orjson
from flask import Flask, Response, request

from timekeeper.accounts.balance import Statement
from timekeeper.accounts.grants import MAX_GRANTED, manual_grant
from timekeeper.api.http.parameters import IDEMPOTENCY_KEY, NAME, NAMESPACE_RULE, like
from timekeeper.api.http.routes import JSON, ApiRoute, Form, Parameter, read_body
from timekeeper.api.http.services import Services
from timekeeper.api.resources.grants import GPU_MINUTE, read_increase, read_key, read_namespace
from timekeeper.api.resources.heartbeats import store_post
from timekeeper.runtime.http.problem_details import Problem, bad
from timekeeper.runtime.log import log
from timekeeper.store import grants
from timekeeper.store.heartbeats import HeartbeatPost

# Its sidecar sends neither sequence nor run: the time of receipt serves as both.
_RUN = "report"


class Minutes(TypedDict):
    """A budget in GPU-minutes; null if unlimited."""

    budget_available: bool
    budget: float | None
    budget_remaining: float | None


class Increase(TypedDict):
    """GPU-minutes to grant, with at most 6 decimals."""

    minutes: Annotated[float, Form(exclusiveMinimum=0, maximum=10**10)]
    reason: NotRequired[Annotated[str, Form(minLength=1, maxLength=500)]]


class Terminate(TypedDict):
    """True if the pod has ended."""

    terminate: bool


_NAMESPACE = Parameter("namespace", "a namespace", like(NAME), NAMESPACE_RULE, "path", True)

ROUTES = (
    ApiRoute(
        "GET",
        "/budget/{namespace}",
        "kubernetes-gpusharing's: a budget in GPU-minutes",
        None,
        {JSON: Minutes},
        (_NAMESPACE,),
        needs="`get budgets` in the namespace",
    ),
    ApiRoute(
        "POST",
        "/budget/{namespace}/report",
        "kubernetes-gpusharing's: a heartbeat; requires the token of a governed pod",
        None,
        {JSON: Terminate},
        (_NAMESPACE,),
        body=dict[str, Any],
        refuses=(404, 413),
    ),
    ApiRoute(
        "POST",
        "/budget/{namespace}/increase",
        "kubernetes-gpusharing's: grant minutes, once for each Idempotency-Key",
        None,
        {JSON: Minutes},
        (_NAMESPACE, IDEMPOTENCY_KEY),
        body=Increase,
        refuses=(409, 413, 422),
        needs="`create grants` in the namespace",
    ),
)


def register(app: Flask, services: Services) -> None:
    """Add the routes."""

    @app.get("/budget/<namespace>")
    def budget_in_minutes(namespace: str) -> Response:
        authorization = request.headers.get("Authorization")
        services.gate.caller(authorization)
        services.gate.allow(authorization, "get", "budgets", read_namespace(namespace))
        return _answer(_shown(services.ledger.account_now(namespace).statement))

    @app.post("/budget/<namespace>/report")
    def report_usage(namespace: str) -> Response:
        received_ms = services.clock()
        pod = services.gate.pod(request.headers.get("Authorization"))
        if pod.namespace != read_namespace(namespace):
            raise Problem(403, f"the token is of a pod in namespace {pod.namespace}")
        read_body()
        answered, _ = store_post(services, HeartbeatPost(pod.uid, _RUN, received_ms, (0,), received_ms))
        return _answer({"terminate": answered.ended})

    @app.post("/budget/<namespace>/increase")
    def increase(namespace: str) -> Response:
        authorization = request.headers.get("Authorization")
        services.gate.caller(authorization)
        caller = services.gate.allow(authorization, "create", "grants", read_namespace(namespace))
        key = read_key(request.headers.get("Idempotency-Key"))
        amount, reason = read_increase(read_body())
        return _answer(_shown(_grant(services, namespace, amount, reason, caller.username, key)))


def _grant(services: Services, namespace: str, amount: int, reason: str, actor: str, key: str) -> Statement:
    """Write the grant, once per key; returns the account after it."""
    ledger = services.ledger
    with ledger.store.writing(turn=grants.TURN) as connection:
        before, granted = ledger.account(connection, namespace)
        if before.balance.granted is None:
            raise Problem(
                409, f"namespace {namespace} has no budget that could be increased: it is unlimited"
            )
        if granted.amount + amount > MAX_GRANTED:
            raise bad("minutes", "the total granted would exceed what the ledger can hold")
        grant = manual_grant(namespace, before.account.span, amount, reason, actor, key, services.clock())
        given = grants.give(connection, grant)
        if (given.grants[0].amount, given.grants[0].actor) != (amount, actor):
            raise Problem(422, "this Idempotency-Key was already used for another grant", "Idempotency-Key")
        after, _ = ledger.account(connection, namespace)
    if given.is_new:
        log("granted", namespace=namespace, amount=amount, kind=grant.kind, actor=actor, reason=reason)
    return after


def _shown(statement: Statement) -> Mapping[str, object]:
    balance = statement.balance
    return {
        "budget_available": statement.standing != "OVER_BUDGET",
        "budget": None if balance.granted is None else balance.granted / GPU_MINUTE,
        "budget_remaining": None if balance.remaining is None else balance.remaining / GPU_MINUTE,
    }


def _answer(body: Mapping[str, object]) -> Response:
    return Response(orjson.dumps(body), content_type="application/json")
