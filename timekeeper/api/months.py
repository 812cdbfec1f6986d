"""``/v1/months``: closed months with their hashes; ``/v1/corrections``: entries that correct a bill."""

from collections.abc import Iterable
from datetime import date
from typing import Annotated, Literal

from flask import Flask, Response
from msgspec import UNSET, UnsetType

from timekeeper.accounts.budget_history import History
from timekeeper.accounts.grants import caller_key
from timekeeper.accounts.usage import gpu_hours
from timekeeper.api import sheets
from timekeeper.api.http.answers import AmountAnswer, Span, Versioned, amount_of, answer
from timekeeper.api.http.bodies import Body
from timekeeper.api.http.parameters import (
    IDEMPOTENCY_KEY,
    MONTH_IN_PATH,
    NAMESPACE,
)
from timekeeper.api.http.routes import JSON, ApiRoute, Call, Right, admit, read_body, serve
from timekeeper.api.http.services import Services
from timekeeper.api.resources.grants import ONE_AMOUNT, GivenAmount, Namespace, granted
from timekeeper.api.resources.usage import CorrectionAnswer, correction_answer
from timekeeper.core.ledger.metering import Interval
from timekeeper.core.ledger.months import ChargeCorrection, ClosedMonth, MonthHash, month_name
from timekeeper.core.object_names import NAME
from timekeeper.runtime.http.problem_details import Problem, bad
from timekeeper.store import ledger, months
from timekeeper.store.engine.engine import Connection
from timekeeper.wire.forms import like

_READ = Right("get", "usage")

MonthState = Literal["future", "before", "runs", "waits", "ended", "closed"]


class MonthHashAnswer(AmountAnswer):
    """The hashes of a month. `sha256`: of the three others, in this order. `sessions`: how many have a charge
    in it; `amount`: of all, in milli-GPU x milliseconds; `grants`: how many were made in it."""

    sha256: str
    charges: str
    grantsMade: str
    prices: str
    sessions: int
    grants: int


class ClosedMonthAnswer(Span):
    """A month as it was closed, with its hashes then."""

    month: str
    closed: int
    hashes: MonthHashAnswer


class MonthsAnswer(Versioned):
    """The closed months, the newest first."""

    months: list[ClosedMonthAnswer]


class LatePostings(AmountAnswer):
    """What later proof corrected of the month after it was closed, in milli-GPU x milliseconds."""

    postings: int


class MonthAnswer(Span, Versioned):
    """A month and its hashes now. `clusterName`: at its end, null: none; `state`: it has not begun; the
    ledger began after it; it runs; it waits for `waitsFor` sessions that are not settled, and whose last
    evidence is of the month (`awaited`: the first to fall silent, with what ends each); it has ended, and
    will be closed; or it is closed. `closed`: as it was then; `differs`: which of charges, grants and prices
    are not as they were, empty: unchanged; `late`: what later proof changed; `corrections`: of its charges,
    billed when they were made."""

    month: str
    clusterName: str | None
    state: MonthState
    waitsFor: int
    awaited: list[str]
    now: MonthHashAnswer
    closed: ClosedMonthAnswer | None
    differs: list[str]
    late: LatePostings | None
    corrections: list[CorrectionAnswer]


Month = Annotated[str, like(r"[0-9]{4}-(0[1-9]|1[0-2])", "it must be a month such as 2026-10")]


class NewCorrection(GivenAmount, frozen=True, kw_only=True):
    """Either `gpuHours` or `amount`, negative to take a charge back, at most what is billed of that month.
    `month`: of the wrong charge, without it the running one; `pod`: whose charge was wrong."""

    namespace: Namespace
    month: Month | UnsetType = UNSET
    pod: Annotated[str, like(NAME, "it must be the name of a pod")] | UnsetType = UNSET


class CorrectionsAnswer(Versioned):
    """Corrections, the oldest first."""

    corrections: list[CorrectionAnswer]


BODY = Body(NewCorrection, ONE_AMOUNT)
MONTHS = ApiRoute(
    path="/v1/months",
    about="the closed months, with their hashes",
    right=_READ,
    answers={JSON: MonthsAnswer},
    sheet=sheets.MONTHS,
)
MONTH = ApiRoute(
    path="/v1/months/{month}",
    about="a month's hashes now, and whether they are those of when it was closed",
    right=_READ,
    answers={JSON: MonthAnswer},
    parameters=(MONTH_IN_PATH,),
    sheet=sheets.MONTH,
)
LIST = ApiRoute(
    path="/v1/corrections",
    about="entries that correct a bill",
    right=_READ,
    answers={JSON: CorrectionsAnswer},
    parameters=(NAMESPACE,),
    sheet=sheets.CORRECTIONS,
)
CREATE = Right("create", "grants")
CORRECT = ApiRoute(
    method="POST",
    path="/v1/corrections",
    about="correct a bill by an entry beside the charges, which stay; once per Idempotency-Key",
    right=None,
    answers={JSON: CorrectionsAnswer},
    parameters=(IDEMPOTENCY_KEY,),
    body=BODY,
    refuses=(409, 422),
    needs="`create grants` for the namespace",
    sheet=sheets.CORRECTIONS,
)
ROUTES = (MONTHS, MONTH, LIST, CORRECT)


def register(app: Flask, services: Services) -> None:
    """Add the routes."""

    def list_months(_: Call) -> Response:
        with services.ledger.store.reading() as connection:
            found = months.closed(connection)
        return answer(MonthsAnswer(version=1, months=list(map(_closed, found.values()))))

    def one(call: Call) -> Response:
        return answer(_month(services, call.get("month")))

    def list_corrections(call: Call) -> Response:
        with services.ledger.store.reading() as connection:
            found = months.corrections(connection, call.get("namespace", ""))
        return _corrected(found)

    def correct(call: Call) -> Response:
        new = BODY.read(read_body())
        actor = admit(services, CREATE, new.namespace).username
        written = _correct(services, new, actor, call.given["Idempotency-Key"])
        return _corrected((written,))

    serve(app, services, MONTHS, list_months)
    serve(app, services, MONTH, one)
    serve(app, services, LIST, list_corrections)
    serve(app, services, CORRECT, correct)


def _corrected(found: Iterable[ChargeCorrection]) -> Response:
    return answer(CorrectionsAnswer(version=1, corrections=list(map(correction_answer, found))))


def _month(services: Services, first: date) -> MonthAnswer:
    name = f"{first:%Y-%m}"
    with services.ledger.store.reading() as connection:
        now_ms, history = services.ledger.moment(connection)
        closed = months.closed(connection).get(name)
        first_ms = ledger.first_ms(connection)
        span = months.calendar(connection, history, first_ms).named(first)
        computed = months.hash_of(connection, span, now_ms)
        waits, awaited = (0, []) if closed else months.waits_for(connection, span, now_ms)
        late = months.corrected_since(connection, closed) if closed else None
        corrections = months.corrections(connection, "", of=span)
    now = computed()
    return {
        "version": 1,
        "month": name,
        "clusterName": history.settings(span.end_ms - 1).cluster_name or None,
        "from": span.start_ms,
        "to": span.end_ms,
        "state": "closed" if closed else _state(span, now_ms, first_ms, waits),
        "waitsFor": waits,
        "awaited": [f"{who}: {command}" for who, command in awaited],
        "now": _hashes(now),
        "closed": None if closed is None else _closed(closed),
        "differs": [] if closed is None else list(closed.differs(now)),
        "late": None if late is None else {"postings": late[0], **amount_of(late[1])},
        "corrections": list(map(correction_answer, corrections)),
    }


def _state(span: Interval, now_ms: int, first_ms: int | None, waits: int) -> MonthState:
    """``first_ms``: of the ledger; None while it is empty. ``waits``: sessions that are not settled."""
    if now_ms < span.end_ms:
        return "runs" if span.start_ms <= now_ms else "future"
    if first_ms is None or span.end_ms <= first_ms:
        return "before"
    return "waits" if waits else "ended"


def _correct(services: Services, new: NewCorrection, actor: str, key: str) -> ChargeCorrection:
    amount = granted(new, "correction")
    with services.ledger.store.writing() as connection:
        now_ms, history = services.ledger.moment(connection)
        calendar = months.calendar(connection, history, ledger.first_ms(connection))
        named = new.month and calendar.named(date.fromisoformat(f"{new.month}-01"))
        span = named or calendar.at(now_ms)
        if span.start_ms > now_ms:
            raise bad("month", "it must not be in the future")
        namespace, pod, at_ms = new.namespace, new.pod or "", min(now_ms, span.end_ms - 1)
        number = caller_key(0, actor, key)
        asked = ChargeCorrection(namespace, pod, at_ms, amount, new.reason, actor, number, now_ms)
        written = months.correction(connection, number)
        if written is None:
            _check_charged(connection, history, span, asked)
            written = months.correct(connection, asked)
    if not written.asks_as(asked) or not span.start_ms <= written.at_ms < span.end_ms:
        raise Problem(422, "this Idempotency-Key was already used for another correction", "Idempotency-Key")
    return written


def _check_charged(connection: Connection, history: History, span: Interval, asked: ChargeCorrection) -> None:
    """Raises Problem where the correction is not of a charge: a name or the amount is wrong."""
    namespace, pod = asked.namespace, asked.pod
    if namespace not in history.namespaces() | ledger.namespaces(connection):
        raise Problem(422, f"{namespace} has neither a budget nor a charge: check the name", "namespace")
    charged, added = months.charged(connection, span, asked.created_ms, namespace, pod)
    month, billed = month_name(span), charged + added
    if pod and not charged:
        raise Problem(422, f"no pod {pod} of {namespace} is charged in {month}: check the name", "pod")
    if asked.amount < 0 and billed + asked.amount < 0:
        whose = f"pod {pod} of {namespace}" if pod else namespace
        raise Problem(
            422,
            f"it takes back {gpu_hours(-asked.amount)} GPU-hours, and {whose} is charged"
            f" {gpu_hours(billed)} in {month}, with earlier corrections",
            "gpuHours",
        )


def _hashes(found: MonthHash) -> MonthHashAnswer:
    return {
        "sha256": found.sha256,
        "charges": found.charges_sha256,
        "grantsMade": found.grants_sha256,
        "prices": found.prices_sha256,
        "sessions": found.sessions,
        **amount_of(found.amount),
        "grants": found.grants,
    }


def _closed(month: ClosedMonth) -> ClosedMonthAnswer:
    times: Span = {"from": month.from_ms, "to": month.to_ms}
    return {"month": month.month, **times, "closed": month.closed_ms, "hashes": _hashes(month.hashes)}
