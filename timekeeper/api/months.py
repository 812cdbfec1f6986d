"""``/v1/months``: closed months with their hashes; ``/v1/corrections``: entries that correct a bill."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import date
from itertools import accumulate, islice
from typing import Annotated, Literal

from flask import Flask, Response
from msgspec import UNSET, UnsetType

from timekeeper.accounts.budget_history import History
from timekeeper.accounts.grants import caller_key
from timekeeper.accounts.usage import gpu_hours, price_intervals
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
from timekeeper.core.ledger.metering import Interval, calendar_name
from timekeeper.core.ledger.months import ChargeCorrection, ClosedMonth, CorrectedPart, MonthHash, month_name
from timekeeper.core.object_names import NAME
from timekeeper.runtime.http.problem_details import Problem, bad
from timekeeper.store import ledger, months
from timekeeper.store.engine.engine import Connection
from timekeeper.store.months import Terms, pod_of
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
    `month`: of the wrong charge, without it the running one; `pod`: whose charge was wrong, and `uid`: that
    of the pod or of the claim's allocation, needed where several had the name."""

    namespace: Namespace
    month: Month | UnsetType = UNSET
    pod: Annotated[str, like(NAME, "it must be the name of a pod")] | UnsetType = UNSET
    uid: Annotated[str, like("[!-~]{1,500}", "it must be a UID")] | UnsetType = UNSET


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
    with services.ledger.store.writing(turn="corrections") as connection:
        now_ms, history = services.ledger.moment(connection)
        calendar = months.calendar(connection, history, ledger.first_ms(connection))
        named = new.month and calendar.named(date.fromisoformat(f"{new.month}-01"))
        span = named or calendar.at(now_ms)
        if span.start_ms > now_ms:
            raise bad("month", "it must not be in the future")
        namespace, pod, at_ms = new.namespace, new.pod or "", min(now_ms, span.end_ms - 1)
        number, uid = caller_key(0, actor, key), pod_of(new.uid or "")
        asked = ChargeCorrection(namespace, pod, at_ms, amount, new.reason, actor, number, now_ms, uid=uid)
        written = months.correction(connection, number)
        if written is None:
            written = months.correct(connection, _with_parts(connection, history, span, asked))
    if not written.answers(asked) or not span.start_ms <= written.at_ms < span.end_ms:
        raise Problem(422, "this Idempotency-Key was already used for another correction", "Idempotency-Key")
    return written


_MOST_PODS = 50  # of one name in a refusal
_Parts = list[tuple[Terms, CorrectedPart]]


def _with_parts(
    connection: Connection, history: History, span: Interval, asked: ChargeCorrection
) -> ChargeCorrection:
    """The correction with what it belongs to: in proportion to what was charged at each price in each group,
    with earlier corrections. Raises Problem where it is not of a charge: a name or the amount is wrong."""
    namespace, month, whose = asked.namespace, month_name(span), asked.namespace
    if namespace not in history.namespaces() | ledger.namespaces(connection):
        raise Problem(422, f"{namespace} has neither a budget nor a charge: check the name", "namespace")
    terms = price_intervals(history, (namespace,), span)
    charged = months.charged(connection, span, asked.created_ms, namespace, terms)
    earlier = months.corrections(connection, namespace, of=span)
    added = [part for made in earlier for part in months.parts_of(connection, history, made)]
    left = billed = _billed([*charged, *added])
    if asked.pod or asked.uid:
        charged = _of_pod(charged, asked, month, history.settings(asked.created_ms).time_zone)
        of = charged[0][1].of
        asked = replace(asked, pod=of["pod"], uid=pod_of(of["uid"]))
        added = [row for row in added if pod_of(row[1].of.get("uid", "")) == asked.uid]
        left, whose = _billed([*charged, *added]), f"pod {asked.pod} of {namespace}"
    left = Counter({key: max(0, min(amount, billed[key])) for key, amount in left.items()})
    if left.total() + asked.amount < 0:
        raise Problem(
            422,
            f"it takes back {gpu_hours(-asked.amount)} GPU-hours, and {whose} is charged"
            f" {gpu_hours(left.total())} in {month}, with earlier corrections",
            "gpuHours",
        )
    parts = []
    for key, amount in _shares(asked.amount, left if asked.amount < 0 else _billed(charged)):
        of_it = [part for at, part in charged if at == key] or [part for at, part in added if at == key]
        common = months.in_common(connection, (part.of.get("uid", "") for part in of_it))
        common |= {"uid": asked.uid, "pod": asked.pod} if asked.uid else {}
        parts.append(CorrectedPart(amount, *_times(of_it), common))
    parts.sort(key=lambda part: part.from_ms)
    return replace(asked, at_ms=parts[0].from_ms if parts else asked.at_ms, parts=tuple(parts))


def _of_pod(charged: _Parts, asked: ChargeCorrection, month: str, zone: str) -> _Parts:
    """What the named pod was charged. Raises Problem unless there is one."""
    pods: defaultdict[str, _Parts] = defaultdict(list)
    for terms, part in charged:
        uid = pod_of(part.of["uid"])
        if asked.pod in (part.of["pod"], "") and asked.uid in (uid, ""):
            pods[uid].append((terms, part))
    if not pods:
        field, name = ("uid", "UID") if asked.uid else ("pod", "name")
        wrong = f"no pod {asked.uid or asked.pod} of {asked.namespace} is charged in {month}"
        raise Problem(422, f"{wrong}: check the {name}", field)
    if len(pods) > 1:
        names = []
        for uid, rows in islice(pods.items(), _MOST_PODS):
            start_ms, end_ms = _times([part for _, part in rows])
            days = (calendar_name("day", zone, at_ms) for at_ms in (start_ms, end_ms - 1))
            hours = gpu_hours(_billed(rows).total())
            names.append(f"{uid} ({hours} GPU-hours, {' to '.join(dict.fromkeys(days))})")
        whose = f"{len(pods)} pods {asked.pod} of {asked.namespace} are charged in {month}"
        raise Problem(422, f"{whose}; name one by its uid: {', '.join(names)}", "pod")
    return next(iter(pods.values()))


def _times(parts: list[CorrectedPart]) -> tuple[int, int]:
    return min(part.from_ms for part in parts), max(part.to_ms for part in parts)


def _billed(parts: _Parts) -> Counter[Terms]:
    sums: Counter[Terms] = Counter()
    for terms, part in parts:
        sums[terms] += part.amount
    return sums


def _shares(amount: int, weights: Mapping[Terms, int]) -> Iterator[tuple[Terms, int]]:
    """The amount in proportion to the weights, to the unit; none exceeds its weight if the sum does not."""
    whole, before = sum(weights.values()), 0
    for key, end in zip(weights, accumulate(weights.values()), strict=True):
        part = abs(amount) * end // whole - before if whole else 0
        before += part
        if part:
            yield key, part if amount > 0 else -part


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
