"""``GET /v1/held``: which pods wait behind Bursar's scheduling gate, and their places in the queue."""

from itertools import groupby
from typing import Any

from flask import Flask, Response

from timekeeper.accounts.held.queue import QueuedPod, queue_of
from timekeeper.api.http.answers import HeldAnswer, answer
from timekeeper.api.http.parameters import AFTER, LIMIT, NAMESPACE, cursor, shaped
from timekeeper.api.http.routes import JSON, ApiRoute, Call, Right, serve
from timekeeper.api.http.services import Services
from timekeeper.store.queries import held_pods

_PAGE = 1_000

HELD = ApiRoute(
    "GET",
    "/v1/held",
    "pods that wait behind the gate bursar.dev/budget, in the order of their release; by namespace",
    Right("get", "sessions"),
    {JSON: HeldAnswer},
    (NAMESPACE, LIMIT, AFTER),
)
ROUTES = (HELD,)


def register(app: Flask, services: Services) -> None:
    """Add the route."""

    def list_held(call: Call) -> Response:
        limit, after = call.get("limit", _PAGE), shaped(call.get("after"), str, int)
        found = _queues(services, call.get("namespace", ""))
        left = [each for each in found if after is None or (each.pod.namespace, each.ahead) > after]
        page = left[:limit]
        follows = cursor(page[-1].pod.namespace, page[-1].ahead) if len(left) > limit else None
        return answer({"version": 1, "held": [_shown(each) for each in page], "next": follows}, follows)

    serve(app, services, HELD, list_held)


def _queues(services: Services, namespace: str) -> list[QueuedPod]:
    """The queues of all namespaces, or of one, by name."""
    ledger = services.ledger
    with ledger.store.reading() as connection:
        now_ms, _ = ledger.moment(connection)
        lookahead_ms = ledger.history(connection).settings(now_ms).lookahead_ms
        pods = sorted(held_pods.held(connection, namespace), key=lambda each: each.namespace)
        queues: list[QueuedPod] = []
        for name, mine in groupby(pods, key=lambda each: each.namespace):
            statement, _ = ledger.account(connection, name)
            queues += queue_of(mine, statement, lookahead_ms, now_ms)
    return queues


def _shown(queued: QueuedPod) -> dict[str, Any]:
    pod = queued.pod
    return {
        "uid": pod.uid,
        "namespace": pod.namespace,
        "pod": pod.name,
        "waitsFor": "budget" if pod.needs_budget else "turn",
        "priority": pod.priority,
        "created": pod.created_ms,
        "rateMilli": pod.rate_milli,
        "ahead": queued.ahead,
        "earliest": queued.earliest_ms,
    }
