"""``GET /v1/would``: what would have happened to pods of metered namespaces, had budgets been enforced."""

from typing import Any

from flask import Flask, Response

from timekeeper.accounts.would import VerdictWord
from timekeeper.api import sheets
from timekeeper.api.http.answers import Paged, Since, Span, answer, tagged
from timekeeper.api.http.parameters import AFTER, FROM, LIMIT, NAMESPACE, TO, choice, cursor, shaped, start_ms
from timekeeper.api.http.routes import CSV, JSON, ApiRoute, Call, Right, serve
from timekeeper.api.http.services import Services
from timekeeper.api.report_formats import as_csv, iso
from timekeeper.core.ledger.metering import calendar_name
from timekeeper.runtime.http.problem_details import bad
from timekeeper.store import would
from timekeeper.store.decisions import held_queues
from timekeeper.store.engine.engine import Connection
from timekeeper.store.would import WouldGroup, WouldQuery, week_of, week_start_ms

_PAGE = 1_000
_WEEKS = 4  # without a time range: this one, and three before
UNKNOWN = (
    "Exempt users, groups and namespaces, schedulers of the webhook's --other-schedulers, and"
    " PodDisruptionBudgets are not known here: some of these pods would have been spared."
)
LATE = "Pods counted as late were judged more than 10 minutes after their creation, by the standing then."


class WouldAnswerRow(Since):
    """Pods of one namespace and week with one verdict. `week`: ISO 8601, in UTC, which begins at `from`;
    `rule`: the first rule that refuses; `pods`: of `of` new pods that were judged; `late`: how many of them
    long after their creation; `pod`, `sentence`: of the newest."""

    week: str
    namespace: str
    verdict: VerdictWord
    rule: str
    pods: int
    of: int
    late: int
    pod: str
    sentence: str


class WouldAnswer(Span, Paged):
    """The newest week first. `enforced`: namespaces that were left out, for they are not
    metered now: they are enforced, or deleted; `notes`: sentences on what is not known; `began`: the first
    moment that the ledger charged, null: none."""

    rows: list[WouldAnswerRow]
    enforced: list[str]
    notes: list[str]
    began: int | None


WOULD = ApiRoute(
    path="/v1/would",
    about="what would have happened to pods of metered namespaces, had budgets been enforced; without a"
    " time range, in four weeks",
    right=Right("get", "usage"),
    answers={JSON: WouldAnswer, CSV: str},
    parameters=(NAMESPACE, FROM, TO, choice("format", "of the rows", ("json", "csv")), LIMIT, AFTER),
    sheet=sheets.WOULD,
)
ROUTES = (WOULD,)


def register(app: Flask, services: Services) -> None:
    """Add the route."""

    def list_all(call: Call) -> Response:
        limit, after = call.get("limit", _PAGE), shaped(call.get("after"), int, int, int, str, str, str)
        start, end = after[:2] if after else _span(services, call)
        with services.ledger.store.reading() as connection:
            metered, enforced = _namespaces(services, connection, call.get("namespace"), start, end)
            asked = WouldQuery(start, end, tuple(metered), after[2:] if after else None)
            found = would.groups(connection, asked, limit + 1)
            held = _held_queues(services, connection, call.get("namespace"))
        page, last = found[:limit], found[min(limit, len(found)) - 1] if found else None
        follows = None
        if last is not None and len(found) > limit:
            follows = cursor(start, end, last.week, last.namespace, last.verdict, last.rule)
        rows = [_shown(each) for each in page]
        if call.get("format") == "csv":
            cells = ({**each, "from": iso(each["from"])} for each in rows)
            body = b"".join(as_csv(sheets.WOULD.keys, cells))
            return tagged(Response(body, content_type=f"{CSV}; charset=utf-8"), follows)
        times, began = Span({"from": start, "to": end}), services.ledger.began_ms()
        notes = [*_notes(page), *held]
        answered = WouldAnswer(
            version=1, **times, rows=rows, enforced=enforced, notes=notes, began=began, next=follows
        )
        return answer(answered, follows)

    serve(app, services, WOULD, list_all)


def _span(services: Services, call: Call) -> tuple[int, int]:
    zone, now_ms = services.ledger.calendar()
    start, end = start_ms(call.get("from"), zone), start_ms(call.get("to"), zone)
    end = now_ms + 1 if end is None else end
    start = week_start_ms(week_of(min(end, now_ms)) - _WEEKS + 1) if start is None else start
    if start >= end:
        raise bad("to" if "to" in call.given else "from", "the time range must not be empty")
    return start, end


def _namespaces(
    services: Services, connection: Connection, namespace: str | None, start: int, end: int
) -> tuple[list[str], list[str]]:
    """The metered ones that have rows, or the one that is asked for; and those that are enforced."""
    names = would.namespaces(connection, start, end) if namespace is None else [namespace]
    if would.only_meters(connection):
        return names, []
    now_ms, history = services.ledger.moment(connection)
    metered = [each for each in names if history.is_metered(each, now_ms)]
    return metered, [each for each in names if each not in metered]


def _held_queues(services: Services, connection: Connection, namespace: str | None) -> list[str]:
    """Which of Kueue's queues would be held now: a sentence on each."""
    now_ms, history = services.ledger.moment(connection)
    names = history.namespaces() if namespace is None else {namespace}
    metered = {name for name in names if history.is_metered(name, now_ms)}
    asking = {name for name in metered if history.budget(name, now_ms).budget.kueue == "hold"}
    return [*held_queues(connection, asking).values()]


def _notes(groups: list[WouldGroup]) -> list[str]:
    late = [LATE] if any(each.late for each in groups) else []
    return [UNKNOWN, *late] if any(each.verdict != "admitted" for each in groups) else late


def _shown(group: WouldGroup) -> Any:
    begins_ms = week_start_ms(group.week)
    return {
        "week": calendar_name("week", "UTC", begins_ms),
        "from": begins_ms,
        **{name: getattr(group, name) for name in sheets.WOULD.keys[2:]},
    }
