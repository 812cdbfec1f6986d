"""The three routes of kubernetes-gpusharing's timekeeper, so that its sidecars and scripts keep working.

Amounts are GPU-minutes as JSON numbers, for display. The ledger itself holds only integers.
"""

from decimal import Decimal
from typing import Annotated, Any, TypedDict

import orjson
from flask import Flask, Response, request
from msgspec import Raw, Struct

from timekeeper.accounts.balance import Statement
from timekeeper.accounts.grants import MAX_GRANTED, manual_grant
from timekeeper.api.http.bodies import Body
from timekeeper.api.http.parameters import IDEMPOTENCY_KEY, NAMESPACE_ONLY_IN_PATH
from timekeeper.api.http.routes import JSON, ApiRoute, read_body
from timekeeper.api.http.services import Services
from timekeeper.api.resources.grants import Reason, exact_number
from timekeeper.api.resources.heartbeats import store_post
from timekeeper.log import log
from timekeeper.runtime.http.problem_details import Problem, bad
from timekeeper.store import grants
from timekeeper.store.accounts import NotWrittenError
from timekeeper.store.heartbeats import HeartbeatPost
from timekeeper.wire.forms import NotAllowedError, allowed, check_printable

GPU_MINUTE = 60_000_000  # milli-GPU x milliseconds
_MAX_MINUTES = 10**10


_MINUTES = allowed(
    f"it must be a number of GPU-minutes above 0, at most {_MAX_MINUTES}, with 6 decimals",
    {"type": "number", "exclusiveMinimum": 0, "maximum": _MAX_MINUTES},
)

# Its sidecar sends neither sequence nor run: the time of receipt serves as both.
_RUN = "report"


class Minutes(TypedDict):
    """A budget in GPU-minutes; null if unlimited."""

    budget_available: bool
    budget: float | None
    budget_remaining: float | None


class Increase(Struct, frozen=True):
    """GPU-minutes to grant, with at most 6 decimals."""

    minutes: Annotated[Raw, _MINUTES]
    reason: Reason = "requested over REST"

    def __post_init__(self) -> None:
        check_printable(self, "reason")
        minutes, exponent = exact_number(bytes(self.minutes).decode())
        if not 0 < minutes <= _MAX_MINUTES or exponent < -6:
            raise NotAllowedError("minutes")


class Terminate(TypedDict):
    """True if the pod has ended."""

    terminate: bool


_REPORT = Body(dict[str, Any])
_INCREASE = Body(Increase)

ROUTES = (
    ApiRoute(
        path="/budget/{namespace}",
        about="kubernetes-gpusharing's: a budget in GPU-minutes",
        right=None,
        answers={JSON: Minutes},
        parameters=(NAMESPACE_ONLY_IN_PATH,),
        needs="`get budgets` in the namespace",
    ),
    ApiRoute(
        method="POST",
        path="/budget/{namespace}/report",
        about="kubernetes-gpusharing's: a heartbeat; requires the token of a governed pod",
        right=None,
        answers={JSON: Terminate},
        parameters=(NAMESPACE_ONLY_IN_PATH,),
        body=_REPORT,
        refuses=(404,),
    ),
    ApiRoute(
        method="POST",
        path="/budget/{namespace}/increase",
        about="kubernetes-gpusharing's: grant minutes, once for each Idempotency-Key",
        right=None,
        answers={JSON: Minutes},
        parameters=(NAMESPACE_ONLY_IN_PATH, IDEMPOTENCY_KEY),
        body=_INCREASE,
        refuses=(409, 422),
        needs="`create grants` in the namespace",
    ),
)


def register(app: Flask, services: Services) -> None:
    """Add the routes."""

    @app.get("/budget/<namespace>")
    def budget_in_minutes(namespace: str) -> Response:
        authorization = request.headers.get("Authorization")
        services.gate.caller(authorization)
        services.gate.allow(authorization, "get", "budgets", _namespace(namespace))
        return _answer(_shown(services.ledger.account_now(namespace).statement))

    @app.post("/budget/<namespace>/report")
    def report_usage(namespace: str) -> Response:
        received_ms = services.clock()
        pod = services.gate.pod(request.headers.get("Authorization"))
        if pod.namespace != _namespace(namespace):
            raise Problem(403, f"the token is of a pod in namespace {pod.namespace}")
        read_body()
        answered, _ = store_post(services, HeartbeatPost(pod.uid, _RUN, received_ms, (0,), received_ms))
        return _answer(Terminate(terminate=answered.ended))

    @app.post("/budget/<namespace>/increase")
    def increase(namespace: str) -> Response:
        authorization = request.headers.get("Authorization")
        services.gate.caller(authorization)
        caller = services.gate.allow(authorization, "create", "grants", _namespace(namespace))
        key = _key(request.headers.get("Idempotency-Key", ""))
        asked = _INCREASE.read(read_body())
        amount = int(Decimal(bytes(asked.minutes).decode()) * GPU_MINUTE)
        return _answer(_shown(_grant(services, namespace, amount, asked.reason, caller.username, key)))


def _namespace(text: str) -> str:
    name: str = NAMESPACE_ONLY_IN_PATH.read(text)
    return name


def _key(text: str) -> str:
    """Raises a Problem, which is the same whether the header is missing or wrong."""
    try:
        key: str = IDEMPOTENCY_KEY.read(text)
    except Problem as problem:
        raise bad("Idempotency-Key", f"this header is needed: {IDEMPOTENCY_KEY.about}") from problem
    return key


def _grant(services: Services, namespace: str, amount: int, reason: str, actor: str, key: str) -> Statement:
    """Write the grant, once per key; returns the account after it."""
    ledger = services.ledger
    with ledger.store.writing(turn=grants.TURN) as connection:
        before = ledger.account(connection, namespace)
        if before.balance.granted is None:
            raise Problem(
                409, f"namespace {namespace} has no budget that could be increased: it is unlimited"
            )
        if before.balance.granted + amount > MAX_GRANTED:
            raise bad("minutes", "the total granted would exceed what the ledger can hold")
        if before.account.span.end_ms <= services.clock():
            raise NotWrittenError  # its next account has begun
        grant = manual_grant(namespace, before.account.span, amount, reason, actor, key, services.clock())
        given = grants.give(connection, grant)
        if (given.grants[0].amount, given.grants[0].actor) != (amount, actor):
            raise Problem(422, "this Idempotency-Key was already used for another grant", "Idempotency-Key")
        after = ledger.account(connection, namespace)
    if given.is_new:
        log("granted", namespace=namespace, amount=amount, kind=grant.kind, actor=actor, reason=reason)
    return after


def _shown(statement: Statement) -> Minutes:
    balance = statement.balance
    return {
        "budget_available": statement.standing != "OVER_BUDGET",
        "budget": None if balance.granted is None else balance.granted / GPU_MINUTE,
        "budget_remaining": None if balance.remaining is None else balance.remaining / GPU_MINUTE,
    }


def _answer(body: Minutes | Terminate) -> Response:
    return Response(orjson.dumps(body), content_type="application/json")
