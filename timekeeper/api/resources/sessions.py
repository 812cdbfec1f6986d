"""``GET /v1/sessions``: which pod held which cards, when, and its charge. ``GET /v1/doubts``: what of running
sessions is not certain, and what is not charged yet."""

from typing import Any, TypedDict

import orjson
from flask import Flask, Response

from timekeeper.accounts.budget_history import History
from timekeeper.accounts.changes import NEVER
from timekeeper.accounts.claims.claim_findings import read_claims, read_findings
from timekeeper.accounts.claims.claim_sessions import decode_devices
from timekeeper.accounts.failing_watches import FailingWatch, read_watches
from timekeeper.accounts.usage import gpu_hours
from timekeeper.api import sheets
from timekeeper.api.http.answers import ClaimedDeviceAnswer, SessionsAnswer, answer
from timekeeper.api.http.parameters import (
    AFTER,
    FROM,
    LIMIT,
    NAMESPACE,
    NODE,
    STATE,
    TO,
    cursor,
    shaped,
    start_ms,
)
from timekeeper.api.http.routes import JSON, ApiRoute, Call, Right, serve
from timekeeper.api.http.services import Services
from timekeeper.core.ledger.metering import FOREVER_MS, Interval
from timekeeper.core.request.cards import UndecodableError, decode_placement
from timekeeper.runtime.http.problem_details import bad
from timekeeper.store import ledger as ledger_rows
from timekeeper.store import sessions
from timekeeper.store.sessions import ChargedSession, SessionFilter
from timekeeper.wire.values import Version

_PAGE = 1_000
_DOUBTS = 20


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


class DoubtsAnswer(TypedDict):
    """`sessions`: how many running sessions have a doubt; `doubts`: the 20 most frequent; `claims`: pods with
    claims alone that are not charged, for claims are not followed; null: not counted yet; `deviceClaims`:
    what is found of claims; null: they are not followed; `watches`: what is not followed now, and counts
    later; `silentSince`: the settler has written nothing since then; null: it is up to date."""

    version: Version
    sessions: int
    doubts: list[DoubtAnswer]
    claims: list[ClaimingAnswer] | None
    deviceClaims: ClaimFindingsAnswer | None
    watches: list[FailingWatchAnswer]
    silentSince: int | None


SESSIONS = ApiRoute(
    method="GET",
    path="/v1/sessions",
    about="sessions by the UIDs of their pods; with times, those that held their cards then",
    right=Right("get", "sessions"),
    answers={JSON: SessionsAnswer},
    parameters=(NAMESPACE, NODE, STATE, FROM, TO, LIMIT, AFTER),
    sheet=sheets.SESSIONS,
)
DOUBTS = ApiRoute(
    method="GET",
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
            found = sessions.page(connection, _which(call, zone), now_ms, limit + 1)
        follows = cursor(found[limit - 1].session.uid) if len(found) > limit else None
        body = {"version": 1, "sessions": [_shown(each, history) for each in found[:limit]], "next": follows}
        return answer(body, follows)

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
        "claims": None if claims is None else [_claiming(*each) for each in claims.items()],
        "deviceClaims": _claim_findings(pulse.device_claims),
        "watches": [_failing(*each) for each in failing.items()],
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


def _shown(charged: ChargedSession, history: History) -> dict[str, Any]:
    session = charged.session
    in_budget: bool | None = session.admitted_in_budget
    if (
        session.is_reserved
        or session.is_claim
        or (not in_budget and history.is_metered(session.namespace, session.opened_ms))
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
        "bound": session.bound_ms - (session.forgiven_ms or 0),
        "forgivenMs": session.forgiven_ms or 0,
        "opened": session.opened_ms,
        "started": session.started_ms,
        "ended": session.ended_ms or None,  # 0: it ended at an unknown time
        "vanished": session.vanished_ms,
        "settled": session.settled_ms,
        "posted": charged.posted,
        "pending": charged.pending,
        "amount": charged.amount,
        "gpuHours": gpu_hours(charged.amount),
    }


def _claiming(namespace: str, pods: int) -> ClaimingAnswer:
    return {"namespace": namespace, "pods": pods}


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


def _failing(source: str, watch: FailingWatch) -> FailingWatchAnswer:
    return {"source": source, "since": watch.since_ms, "error": watch.error}


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
