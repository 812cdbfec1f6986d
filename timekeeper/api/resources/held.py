"""``GET /v1/held``: which pods wait behind Bursar's scheduling gate, and their places in the queue."""

from dataclasses import dataclass
from itertools import groupby
from typing import Literal, TypedDict

from flask import Flask, Response

from timekeeper.accounts.held.gangs import gangs_as_one
from timekeeper.accounts.held.limits import QueuedPod, queue_of, waiting_by_group
from timekeeper.accounts.held.order import HeldPod
from timekeeper.api import sheets
from timekeeper.api.http.answers import Paged, answer
from timekeeper.api.http.parameters import AFTER, LIMIT, SUBJECT_AS_NAMESPACE, cursor, shaped
from timekeeper.api.http.routes import JSON, ApiRoute, Call, Right, serve
from timekeeper.api.http.services import Services
from timekeeper.api.ledger.ledger_reader import held_of, stated
from timekeeper.store.ledger import waiting as rates_of_waiting

_PAGE = 1_000


class HeldPodAnswer(TypedDict):
    """A pod behind the gate, or a gang as one: `gang` is its name, else empty, `pods` how many of its pods
    are held, `pod` and `uid` are of the oldest. `ahead`: held pods and gangs of its namespace that are
    released before it; `rateMilli`: the highest rate that it can have; `lengthMs`: its declared time and
    grace, which it reserves, 0: it reserves the lookahead; `earliest`: when it is released at the earliest by
    the present budget, null: not by this budget."""

    uid: str
    namespace: str
    pod: str
    gang: str
    pods: int
    waitsFor: Literal["budget", "turn"]
    priority: int
    created: int
    rateMilli: int
    lengthMs: int
    ahead: int
    earliest: int | None


class HeldAnswer(Paged):
    """Held pods in the order of their release, by namespace."""

    held: list[HeldPodAnswer]


HELD = ApiRoute(
    path="/v1/held",
    about="pods that wait behind the gate bursar.dev/budget, in the order of their release; by namespace;"
    " a gang is one row",
    right=Right("get", "sessions", by_members=True),
    answers={JSON: HeldAnswer},
    parameters=(SUBJECT_AS_NAMESPACE, LIMIT, AFTER),
    sheet=sheets.HELD,
)
ROUTES = (HELD,)


@dataclass(frozen=True, slots=True)
class HeldRow:
    """A held pod, or a gang as one pod, and how many pods that are."""

    queued: QueuedPod
    pods: int

    @property
    def place(self) -> tuple[str, int]:
        """By which rows are sorted."""
        return self.queued.pod.namespace, self.queued.ahead


def register(app: Flask, services: Services) -> None:
    """Add the route."""

    def list_held(call: Call) -> Response:
        limit, after = call.get("limit", _PAGE), shaped(call.get("after"), str, int)
        found = _queues(services, call.get("namespace", ""), after[0] if after else "", limit)
        left = [each for each in found if after is None or each.place > after]
        page = left[:limit]
        follows = cursor(*page[-1].place) if len(left) > limit else None
        return answer(HeldAnswer(version=1, held=list(map(_shown, page)), next=follows), follows)

    serve(app, services, HELD, list_held)


def _queues(services: Services, subject: str, first: str, limit: int) -> list[HeldRow]:
    """The queues of the subject's namespaces from ``first`` on, by name: whole ones, as many as have more
    than ``limit`` rows beside those of ``first``."""
    ledger = services.ledger
    with ledger.store.reading() as connection:
        now_ms, history = ledger.moment(connection)
        lookahead_ms = history.settings(now_ms).lookahead_ms
        pods = sorted(held_of(connection, history, subject, now_ms), key=lambda pod: pod.namespace)
        by_name: dict[str, dict[str, tuple[HeldPod, int]]] = {}  # namespace -> UID -> pod and number
        listed = 0
        for name, mine in groupby(pods, key=lambda each: each.namespace):
            if name >= first and listed <= limit:
                by_name[name] = {each[0].uid: each for each in gangs_as_one(mine)}
                listed += len(by_name[name]) if name != first else 0
        accounts = stated(connection, history, by_name)
        waiting = waiting_by_group(history, rates_of_waiting(connection), now_ms)
    return [
        HeldRow(each, mine[each.pod.uid][1])
        for name, mine in by_name.items()
        for each in queue_of(
            (pod for pod, _ in mine.values()),
            accounts[name],
            lookahead_ms,
            now_ms,
            waiting.get(history.group(name, now_ms), 0),
        )
    ]


def _shown(row: HeldRow) -> HeldPodAnswer:
    queued, pod = row.queued, row.queued.pod
    return {
        "uid": pod.uid,
        "namespace": pod.namespace,
        "pod": pod.name,
        "gang": pod.gang.split("/")[1] if pod.gang else "",
        "pods": row.pods,
        "waitsFor": "budget" if pod.needs_budget else "turn",
        "priority": pod.priority,
        "created": pod.created_ms,
        "rateMilli": pod.rate_milli,
        "lengthMs": pod.length_ms,
        "ahead": queued.ahead,
        "earliest": queued.earliest_ms,
    }
