"""``/v1/nodes/{node}``: who was charged on a node until when, and why no longer; also of one that is gone."""

from typing import Literal, TypedDict

from flask import Flask, Response

from timekeeper.accounts.budget_history import History
from timekeeper.accounts.changes import NEVER, Pulse
from timekeeper.accounts.failing_watches import read_watches
from timekeeper.accounts.session import SessionKind
from timekeeper.api import sheets
from timekeeper.api.http.answers import AmountAnswer, Paged, amount_of, answer
from timekeeper.api.http.parameters import (
    AFTER,
    FROM,
    LIMIT,
    NAMESPACE,
    NODE_IN_PATH,
    TO,
    cursor,
    shaped,
    start_ms,
)
from timekeeper.api.http.routes import JSON, ApiRoute, Call, Right, serve
from timekeeper.api.http.services import Services
from timekeeper.api.report_formats import iso
from timekeeper.api.resources.sessions import cards_of
from timekeeper.core.ledger.metering import FOREVER_MS, Interval
from timekeeper.runtime.http.problem_details import Problem, bad
from timekeeper.store import cluster_map, ledger, sessions
from timekeeper.store.engine.engine import Connection
from timekeeper.store.ledger import NodeTimes
from timekeeper.store.sessions import ChargedSession, SessionFilter

_PAGE = 1_000
_DAY_MS = 86_400_000
_QUIET_MS = 60_000  # a kubelet renews its Lease each 10 s, and what it proves is written within 5 s
_EVIDENCE = {"pods", "leases"}  # the watches without which nothing is heard of any node

NodeState = Literal["there", "silent", "left"]
End = Literal["runs", "leaving", "silent", "reported", "unreported", "removed", "reservation"]
_WHY: dict[End, str] = {
    "runs": "it holds its cards",
    "leaving": "its object was removed, and it holds its cards until its grace period is over",
    "silent": "nothing is heard of it since: the charge stops here until its node is back or its object is"
    " removed; then the time between is charged",
    "reported": "its containers ended, by the kubelet",
    "unreported": "it ended and nothing says when: charged until the last sign of it",
    "removed": "removed without a reported end: charged for its grace, or until another Node had its cards",
    "reservation": "the reservation of its cards ended",
}

# `from` cannot be a field name in a class statement
_From = TypedDict("_From", {"from": str})


class NodeCharge(_From, AmountAnswer):
    """A pod's charge on a node. `group`: of the namespace at the end, empty for none; `heldMilli`: its part
    of the cards together, in thousandths of one; `kind`: as of a session; `to`: until when it is charged,
    null while it runs; `end`, and in words `why`; `state`: `settled`, or `open` where later proof may still
    change it; `amount`: in milli-GPU x milliseconds."""

    namespace: str
    group: str
    pod: str
    uid: str
    kind: SessionKind
    owner: str
    models: str
    cards: list[str]
    heldMilli: int
    to: str | None
    end: End
    why: str
    state: Literal["open", "settled"]


class NodeAnswer(_From, Paged):
    """A node, and the charges of pods that held cards there between `from` and `to`, in each page those that
    run first, then by their end, the last first. All times are in RFC 3339. `state`: `left`: the API server
    has no such Node since `left`, as the timekeeper saw it; `silent`: it has it, and nothing is heard of it
    since `heard`; else `there`. `heard`: until when the node was heard with a pod on it, null: never;
    `total`: of these rows."""

    node: str
    state: NodeState
    heard: str | None
    left: str | None
    to: str
    charges: list[NodeCharge]
    total: AmountAnswer


CHARGES = ApiRoute(
    path="/v1/nodes/{node}",
    about="who was charged on a node until when, also where it has left; without `from`, since a day"
    " before it was last heard",
    right=Right("get", "sessions"),
    answers={JSON: NodeAnswer},
    parameters=(NODE_IN_PATH, NAMESPACE, FROM, TO, LIMIT, AFTER),
    sheet=sheets.NODE_CHARGES,
    refuses=(404,),
)
ROUTES = (CHARGES,)


def register(app: Flask, services: Services) -> None:
    """Add the route."""

    def charges(call: Call) -> Response:
        limit = call.get("limit", _PAGE)
        with services.ledger.store.reading() as connection:
            now_ms, history = services.ledger.moment(connection)
            node = ledger.node_times(connection, call.given["node"])
            _check_known(connection, call, node, now_ms)
            which = _which(call, history.settings(now_ms).time_zone, node.heard_ms or now_ms, now_ms)
            found = sessions.page(connection, which, now_ms, limit + 1)
            quiet_ms = _quiet_ms(ledger.pulse(connection) or NEVER)
        follows = cursor(found[limit - 1].session.uid) if len(found) > limit else None
        span = which.span or Interval(0, now_ms)
        body: NodeAnswer = {
            "version": 1,
            "node": which.node,
            "state": _state(node, quiet_ms),
            "heard": _time(node.heard_ms),
            "left": _time(node.gone_ms),
            "from": iso(span.start_ms),
            "to": iso(min(span.end_ms, now_ms)),
            "charges": _charges(found[:limit], quiet_ms, history),
            "total": amount_of(sum(charged.amount for charged in found[:limit])),
            "next": follows,
        }
        return answer(body, follows)

    serve(app, services, CHARGES, charges)


def _check_known(connection: Connection, call: Call, node: NodeTimes, now_ms: int) -> None:
    """Raises a Problem for a node of which the ledger knows nothing, or nothing in the caller's namespace."""
    name, namespace = call.given["node"], call.get("namespace", "")
    if sessions.page(connection, SessionFilter(namespace=namespace, node=name), now_ms, 1):
        return
    if namespace:
        raise Problem(404, f"the ledger has no charge of {namespace} on a node {name}", "node")
    if node.heard_ms is None and not cluster_map.nodes(connection, [name]):
        raise Problem(404, f"the ledger knows no node {name}: no pod was charged there", "node")


def _which(call: Call, zone: str, heard_ms: int, now_ms: int) -> SessionFilter:
    begin_ms = start_ms(call.get("from", max(0, min(now_ms, heard_ms) - _DAY_MS)), zone) or 0
    end_ms = start_ms(call.get("to", FOREVER_MS), zone) or 0
    if begin_ms >= end_ms:
        raise bad("to", "it must be after from")
    after = shaped(call.get("after"), str)
    return SessionFilter(
        namespace=call.get("namespace", ""),
        node=call.given["node"],
        span=Interval(begin_ms, end_ms),
        after=after[0] if after else "",
    )


def _quiet_ms(pulse: Pulse) -> int:
    """Nothing is heard of what was heard last before this time; 0: of nothing is this known, because the
    timekeeper does not hear the API server."""
    is_deaf = _EVIDENCE & read_watches(pulse.watches).keys()
    return 0 if is_deaf else pulse.decided_ms - _QUIET_MS


def _state(node: NodeTimes, quiet_ms: int) -> NodeState:
    is_silent = node.is_held and (node.heard_ms or 0) < quiet_ms
    return "left" if node.gone_ms is not None else "silent" if is_silent else "there"


def _charges(found: list[ChargedSession], quiet_ms: int, history: History) -> list[NodeCharge]:
    """The rows in the order of the answer."""
    ended = [(each, _end(each, quiet_ms)) for each in found]
    ended.sort(key=lambda row: (row[1] != "runs", -row[0].until_ms, row[0].session.uid))
    return [_row(charged, end, history) for charged, end in ended]


def _end(charged: ChargedSession, quiet_ms: int) -> End:
    session = charged.session
    if session.charge == "reserved" and session.is_over:
        return "reservation"
    if session.vanished_ms is not None:
        is_leaving = session.vanished_ms + session.grace_ms > charged.until_ms
        return "leaving" if is_leaving else "removed"
    if session.ended_ms is not None:
        return "reported" if session.ended_ms else "unreported"
    return "silent" if charged.until_ms < quiet_ms else "runs"


def _row(charged: ChargedSession, end: End, history: History) -> NodeCharge:
    session = charged.session
    until_ms = max(session.bound_ms, charged.until_ms)
    return {
        "namespace": session.namespace,
        "group": history.group(session.namespace, max(session.bound_ms, until_ms - 1)),
        "pod": session.name,
        "uid": session.uid,
        "kind": session.kind,
        "owner": session.owner,
        "models": session.models,
        "cards": cards_of(session.devices),
        "heldMilli": session.requested_milli,
        "from": iso(session.bound_ms),
        "to": None if end in ("runs", "leaving") else iso(until_ms),
        "end": end,
        "why": _WHY[end],
        "state": "open" if session.settled_ms is None else "settled",
        **amount_of(charged.amount),
    }


def _time(at_ms: int | None) -> str | None:
    return None if at_ms is None else iso(at_ms)
