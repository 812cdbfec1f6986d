"""``GET /v1/openapi.json``: every route of the timekeeper. Declared here: routes whose handlers parse their
requests themselves (sidecars', the ancestor's, and those for kubelet and Prometheus)."""

from functools import cache
from typing import Annotated, Any, NotRequired, TypedDict

from flask import Flask, Response

from timekeeper.api.http.answers import answer
from timekeeper.api.http.openapi import document
from timekeeper.api.http.parameters import IDEMPOTENCY_KEY, NAME, NAMESPACE_RULE, like
from timekeeper.api.http.routes import JSON, ApiRoute, Form, Parameter
from timekeeper.api.http.services import Services
from timekeeper.api.resources import (
    account_metrics,
    balances,
    budgets,
    decisions,
    explain,
    forecasts,
    held,
    node_usage,
    sessions,
    standings,
    usage,
)
from timekeeper.api.resources.extender_posts import bindings, cluster_map, ends
from timekeeper.api.resources.granting import grants, group_grants
from timekeeper.api.simulation import route as simulation
from timekeeper.core.wire import HeartbeatAnswer, Heartbeats

TEXT = "text/plain"


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

HEARTBEATS = ApiRoute(
    "POST",
    "/v1/heartbeats",
    "a pod's sidecar reports that the pod runs; requires the token of a governed pod",
    None,
    {JSON: HeartbeatAnswer},
    body=Heartbeats,
    refuses=(404, 413),
)
ANCESTORS = (
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
OPEN = (
    ApiRoute("GET", "/livez", "200 while the process lives", None, {TEXT: str}, needs_token=False),
    ApiRoute(
        "GET",
        "/readyz",
        "200 while the database answers and the settler is up to date, else 503 with the reason",
        None,
        {TEXT: str},
        needs_token=False,
    ),
    ApiRoute(
        "GET",
        "/metrics",
        "for Prometheus; needs `get` of the nonResourceURL `/metrics`, unless --metrics-access is open",
        None,
        {TEXT: str},
    ),
    ApiRoute("GET", "/v1/openapi.json", "this document", None, {JSON: dict[str, Any]}, needs_token=False),
)

ROUTES = (
    *standings.ROUTES,
    *budgets.ROUTES,
    *balances.ROUTES,
    *account_metrics.ROUTES,
    *grants.ROUTES,
    *group_grants.ROUTES,
    *sessions.ROUTES,
    *held.ROUTES,
    *usage.ROUTES,
    HEARTBEATS,
    *node_usage.ROUTES,
    *bindings.ROUTES,
    *ends.ROUTES,
    *cluster_map.ROUTES,
    *decisions.ROUTES,
    *explain.ROUTES,
    *forecasts.ROUTES,
    *simulation.ROUTES,
    *ANCESTORS,
    *OPEN,
)


@cache
def _document() -> dict[str, Any]:
    """The document, made once, when a caller first asks for it."""
    return document(ROUTES)


def register(app: Flask, _services: Services) -> None:
    """Add the route."""

    @app.get("/v1/openapi.json")
    def openapi() -> Response:
        return answer(_document())
