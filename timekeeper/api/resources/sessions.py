"""``GET /v1/sessions``: which pod held which cards, when, and its charge. ``GET /v1/doubts``: what of running
sessions is not certain, and what is not charged yet."""

from dataclasses import replace
from typing import Literal, TypedDict

import orjson
from flask import Flask, Response

from timekeeper.accounts.budget_history import History, is_group
from timekeeper.accounts.changes import NEVER
from timekeeper.accounts.claims.claim_findings import read_claims, read_findings
from timekeeper.accounts.claims.claim_sessions import decode_devices
from timekeeper.accounts.failing_watches import read_watches
from timekeeper.accounts.session import SessionKind
from timekeeper.api import sheets
from timekeeper.api.http.answers import AmountAnswer, Paged, Versioned, amount_of, answer
from timekeeper.api.http.parameters import (
    AFTER,
    FROM,
    LIMIT,
    NODE,
    STATE,
    SUBJECT_AS_NAMESPACE,
    TO,
    cursor,
    shaped,
    start_ms,
)
from timekeeper.api.http.routes import JSON, ApiRoute, Call, Right, serve
from timekeeper.api.http.services import Services
from timekeeper.core.budgets.policy import group_key
from timekeeper.core.ledger.metering import FOREVER_MS, Interval
from timekeeper.core.request.cards import decode_placement
from timekeeper.core.values import UndecodableError
from timekeeper.runtime.http.problem_details import bad
from timekeeper.store import ledger as ledger_rows
from timekeeper.store import sessions
from timekeeper.store.sessions import ChargedSession, SessionFilter

_PAGE = 1_000
_DOUBTS = 20


class ClaimedDeviceAnswer(TypedDict):
    """A GPU that a claim holds. `share`: the ID of a share of the device, "": all of
    it; `milli`: which part of a whole device it is, in thousandths; `admin`: by admin access, which is
    free."""

    driver: str
    pool: str
    device: str
    deviceClass: str
    share: str
    milli: int
    admin: bool


class SessionAnswer(AmountAnswer):
    """One pod's hold of its cards, or with the `kind` claim one allocation of a device claim: then `pod` is
    the claim's name, `devices` are its GPUs, and `consumers` the UIDs of the pods that it is reserved
    for; with the kind `host` what the pod's CPU and memory cost beyond its cards. `admittedInBudget`: false
    if its namespace was over budget when it was created, and did not hold it; in mode `enforce` such a pod
    has the class of pods over budget; null for cards that are reserved for a pod, for a pod that is metered
    alone, and where no budget limited it. `requestedMilli`, `requestedMib`: its unweighted share of them;
    `rateMilli`: the rate it is charged at; `cards`: their UUIDs, empty if its placement is not trusted.
    `ended`: null while it runs, if the pod vanished, and if no timestamp says when it ended: then it is
    charged until its last evidence. `doubt`: why its charge is not certain, null: it is."""

    uid: str
    namespace: str
    pod: str
    owner: str
    node: str
    models: str
    labels: dict[str, str]
    cards: list[str]
    kind: SessionKind
    devices: list[ClaimedDeviceAnswer]
    consumers: list[str]
    state: Literal["open", "settled"]
    admittedInBudget: bool | None
    rateMilli: int
    doubt: str | None
    requestedMilli: int
    requestedMib: int
    bound: int
    opened: int
    started: int | None
    ended: int | None
    vanished: int | None
    settled: int | None
    posted: int
    pending: int


class SessionsAnswer(Paged):
    """Sessions by pod UID."""

    sessions: list[SessionAnswer]


class DoubtAnswer(TypedDict):
    """How many running sessions have this doubt."""

    doubt: str
    sessions: int


class ClaimingAnswer(TypedDict):
    """How many pods of a namespace hold devices by resource claims alone; an empty name: those of all other
    namespaces."""

    namespace: str
    pods: int


class FailingWatchAnswer(TypedDict):
    """The timekeeper's list or watch of a kind of objects fails: since when, and how."""

    source: str
    since: int
    error: str


class NamedClaimAnswer(TypedDict):
    """A device claim."""

    namespace: str
    claim: str


class UnknownDriverAnswer(TypedDict):
    """How many claims hold devices of a driver without a rule, which are not charged."""

    driver: str
    claims: int


class ClaimFindingsAnswer(TypedDict):
    """`orphans`: how many claims hold devices and are reserved for no pod that is left, which are charged;
    `named`: the first of them; `adminAccess`: how many have admin access to GPUs, which is free."""

    orphans: int
    named: list[NamedClaimAnswer]
    unknownDrivers: list[UnknownDriverAnswer]
    adminAccess: int


class DoubtsAnswer(Versioned):
    """`sessions`: how many running sessions have a doubt; `doubts`: the 20 most frequent; `claims`: pods with
    claims alone that are not charged, for claims are not followed; null: not counted yet; `deviceClaims`:
    what is found of claims; null: they are not followed; `watches`: what is not followed now, and counts
    later; `silentSince`: the settler has written nothing since then; null: it is up to date."""

    sessions: int
    doubts: list[DoubtAnswer]
    claims: list[ClaimingAnswer] | None
    deviceClaims: ClaimFindingsAnswer | None
    watches: list[FailingWatchAnswer]
    silentSince: int | None


SESSIONS = ApiRoute(
    path="/v1/sessions",
    about="sessions by the UIDs of their pods; with times, those that held their cards then",
    right=Right("get", "sessions", by_members=True),
    answers={JSON: SessionsAnswer},
    parameters=(SUBJECT_AS_NAMESPACE, NODE, STATE, FROM, TO, LIMIT, AFTER),
    sheet=sheets.SESSIONS,
)
DOUBTS = ApiRoute(
    path="/v1/doubts",
    about="why rates of running sessions are not certain, which device claims are charged for no pod or"
    " not at all, and which watches of the API server fail",
    right=Right("get", "sessions"),
    answers={JSON: DoubtsAnswer},
)
ROUTES = (SESSIONS, DOUBTS)


def register(app: Flask, services: Services) -> None:
    """Add the routes."""

    def list_all(call: Call) -> Response:
        limit = call.get("limit", _PAGE)
        ledger = services.ledger
        with ledger.store.reading() as connection:
            now_ms, history = ledger.moment(connection)
            zone = history.settings(now_ms).time_zone
            which, subject = _which(call, zone), call.get("namespace", "")
            if is_group(subject):
                which = replace(which, namespace="", members=tuple(ledger.members(connection, subject)))
            found = sessions.page(connection, which, now_ms, limit + 1)
        follows = cursor(found[limit - 1].session.uid) if len(found) > limit else None
        rows = [_shown(each, history) for each in found[:limit]]
        return answer(SessionsAnswer(version=1, sessions=rows, next=follows), follows)

    serve(app, services, SESSIONS, list_all)
    serve(app, services, DOUBTS, lambda _call: answer(present_doubts(services)))


def present_doubts(services: Services) -> DoubtsAnswer:
    """What is not certain, not charged or not followed now."""
    with services.ledger.store.reading() as connection:
        total, found = sessions.doubts(connection, _DOUBTS)
        pulse = ledger_rows.pulse(connection) or NEVER
    claims, failing = read_claims(pulse.claims), read_watches(pulse.watches)
    return {
        "version": 1,
        "sessions": total,
        "doubts": [{"doubt": doubt, "sessions": number} for doubt, number in found],
        "claims": None
        if claims is None
        else [{"namespace": name, "pods": pods} for name, pods in claims.items()],
        "deviceClaims": _claim_findings(pulse.device_claims),
        "watches": [
            {"source": source, "since": watch.since_ms, "error": watch.error}
            for source, watch in failing.items()
        ],
        "silentSince": services.ledger.silent_since(pulse),
    }


def _which(call: Call, zone: str) -> SessionFilter:
    after = shaped(call.get("after"), str)
    span = None
    if "from" in call.given or "to" in call.given:
        begin_ms, end_ms = start_ms(call.get("from", 0), zone), start_ms(call.get("to", FOREVER_MS), zone)
        span = Interval(begin_ms or 0, end_ms or 0)
        if span.start_ms >= span.end_ms:
            raise bad("to", "it must be after from")
    return SessionFilter(
        namespace=call.get("namespace", ""),
        node=call.get("node", ""),
        state=call.get("state", "all"),
        span=span,
        after=after[0] if after else "",
    )


def _is_limited(history: History, namespace: str, at_ms: int) -> bool:
    """Whether the namespace, or its group, had a budget that could be used up."""
    budget = history.budget(namespace, at_ms).budget
    group = history.budget(group_key(budget.group), at_ms).budget if budget.group else budget
    return budget.amount is not None or group.amount is not None


def _shown(charged: ChargedSession, history: History) -> SessionAnswer:
    session = charged.session
    in_budget: bool | None = session.admitted_in_budget
    when = session.namespace, session.opened_ms
    if session.charge in ("reserved", "claim") or (
        not in_budget and (history.is_metered(*when) or not _is_limited(history, *when))
    ):
        in_budget = None  # nothing of ours admitted it
    return {
        "uid": session.uid,
        "namespace": session.namespace,
        "pod": session.name,
        "owner": session.owner,
        "node": session.node,
        "models": session.models,
        "labels": orjson.loads(session.labels),
        "cards": [] if session.is_claim else cards_of(session.devices),
        "kind": session.kind,
        "devices": _claimed(session.devices) if session.is_claim else [],
        "consumers": session.consumers.split(),
        "state": "open" if session.settled_ms is None else "settled",
        "admittedInBudget": in_budget,
        "rateMilli": session.rate_milli,
        "doubt": session.doubt,
        "requestedMilli": session.requested_milli,
        "requestedMib": session.requested_mib,
        "bound": session.bound_ms,
        "opened": session.opened_ms,
        "started": session.started_ms,
        "ended": session.ended_ms or None,  # 0: it ended at an unknown time
        "vanished": session.vanished_ms,
        "settled": session.settled_ms,
        "posted": charged.posted,
        "pending": charged.pending,
        **amount_of(charged.amount),
    }


def _claim_findings(text: str) -> ClaimFindingsAnswer | None:
    found = read_findings(text)
    if found is None:
        return None
    return {
        "orphans": found["orphans"]["claims"],
        "named": [{"namespace": space, "claim": name} for space, name in found["orphans"]["named"]],
        "unknownDrivers": [{"driver": driver, "claims": number} for driver, number in found["unknown"]],
        "adminAccess": found["admin"],
    }


def _claimed(devices: str) -> list[ClaimedDeviceAnswer]:
    """The GPUs of a claim."""
    return [
        {
            "driver": each.driver,
            "pool": each.pool,
            "device": each.device,
            "deviceClass": each.device_class,
            "share": each.share,
            "milli": each.milli,
            "admin": each.is_admin,
        }
        for each in decode_devices(devices)
    ]


def cards_of(devices: str) -> list[str]:
    """The UUIDs of a placement; empty if there is none, or an unreadable one."""
    try:
        placed = decode_placement(devices) if devices else None
    except UndecodableError:
        placed = None
    return sorted({each.uuid for _, slices in placed.containers for each in slices}) if placed else []
