"""``GET /v1/forecast``: when each budget is gone at the present pace, with the band of the last days."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from flask import Flask, Response

from timekeeper.accounts.budget_history import GROUP, is_group
from timekeeper.accounts.decisions.forecasts import DAY_MS, DAYS, Addition, Pace, forecast
from timekeeper.accounts.usage import ReportQuery
from timekeeper.api.http.answers import Next, answer
from timekeeper.api.http.parameters import AFTER, LIMIT, SUBJECT_AS_NAMESPACE, cursor, shaped
from timekeeper.api.http.routes import JSON, ApiRoute, Call, Right, serve
from timekeeper.api.http.services import Services
from timekeeper.api.ledger.ledger_reader import AccountReading
from timekeeper.core.ledger.metering import FOREVER_MS, Interval, period_at
from timekeeper.core.wire import Version
from timekeeper.store import ledger


class PaceAnswer(TypedDict):
    """`rateMilli`: in thousandths of a weighted GPU; `goneAt`: when it uses up the budget, null: never."""

    rateMilli: int
    goneAt: int | None


class ForecastAnswer(TypedDict):
    """A namespace or group. `remaining`: null if unlimited; `to`: the period's end, null if it has none;
    `now`: at the rate of the pods that run; `fastest`, `slowest`: the band, at the largest and smallest of
    this and of the paces of the last 7 whole days."""

    namespace: str
    standing: str
    remaining: int | None
    to: int | None
    now: PaceAnswer
    fastest: PaceAnswer
    slowest: PaceAnswer


class ForecastsAnswer(TypedDict):
    """Namespaces by name; after the last of them all groups."""

    version: Version
    days: int
    forecasts: list[ForecastAnswer]
    next: Next


FORECAST = ApiRoute(
    "GET",
    "/v1/forecast",
    "when each budget is gone at the present pace, and the band of the last days",
    Right("get", "budgets"),
    {JSON: ForecastsAnswer},
    (SUBJECT_AS_NAMESPACE, LIMIT, AFTER),
)
ROUTES = (FORECAST,)


def register(app: Flask, services: Services) -> None:
    """Add the route."""

    def forecasts(call: Call) -> Response:
        subject, after = call.get("namespace", ""), shaped(call.get("after"), str)
        follows = ""
        if subject:
            accounts = [services.ledger.account_now(subject)]
        else:
            accounts, follows = services.ledger.account_page(call.get("limit"), after[0] if after else "")
            accounts += [] if follows else services.ledger.group_accounts()
        page = cursor(follows) if follows else None
        paces = Paces(services, subject)
        found = [paces.of(each) for each in accounts]
        return answer({"version": 1, "days": DAYS, "forecasts": found, "next": page}, page)

    serve(app, services, FORECAST, forecasts)


class Paces:
    """The rates now and the charges of the last days, by namespace and by group."""

    def __init__(self, services: Services, subject: str) -> None:
        zone, self._now_ms = services.ledger.calendar()
        namespace = subject if subject and not is_group(subject) else None
        group = subject.removeprefix(GROUP) if is_group(subject) else ""
        with services.ledger.store.reading() as connection:
            history = services.ledger.history(connection)
            names: tuple[str, ...] | None = None if namespace is None else (namespace,)
            if group:
                listed = ledger.namespaces(connection)
                names = tuple(each for each in listed if history.group(each, self._now_ms) == group)
            self._rates: dict[str, int] = defaultdict(int, ledger.open_rates(connection, names))
        for name, rate in list(self._rates.items()):
            if theirs := history.group(name, self._now_ms):
                self._rates[GROUP + theirs] += rate
        today_ms = period_at("day", zone, self._now_ms).start_ms
        first_ms = period_at("day", zone, today_ms - DAYS * DAY_MS + DAY_MS // 2).start_ms
        span = Interval(first_ms, today_ms)
        self._days: dict[str, Mapping[int, int]] = {}
        if not is_group(subject):
            asked = ReportQuery(span, ("namespace",), self._now_ms, namespace, step="day", zone=zone)
            self._days |= _days(services, asked, "")
        if namespace is None:
            asked = ReportQuery(span, ("group",), self._now_ms, None, group, "day", zone)
            self._days |= _days(services, asked, GROUP)

    def of(self, account: AccountReading, additions: Sequence[Addition] = ()) -> dict[str, Any]:
        """The account's forecast. ``additions``: pods that are supposed beside those that there are."""
        statement, name = account.statement, account.namespace
        charged = self._days.get(name, {})
        days = [*charged.values(), *([0] * (DAYS - len(charged)))]
        found = forecast(statement.balance.remaining, self._rates[name], days, self._now_ms, additions)
        ends_ms = statement.account.span.end_ms
        return {
            "namespace": name,
            "standing": account.standing,
            "remaining": statement.balance.remaining,
            "to": None if ends_ms >= FOREVER_MS else ends_ms,
            "now": _shown(found.now),
            "fastest": _shown(found.fastest),
            "slowest": _shown(found.slowest),
        }


def _days(services: Services, asked: ReportQuery, prefix: str) -> dict[str, Mapping[int, int]]:
    """Key -> beginning of the day -> charge, posted and pending."""
    found: dict[str, dict[int, int]] = defaultdict(dict)
    for line in services.ledger.lines(asked, None):
        found[prefix + line.key[0]][line.span.start_ms] = int(line.sums.posted + line.sums.pending)
    return dict(found)


def _shown(pace: Pace) -> dict[str, int | None]:
    return {"rateMilli": pace.milli, "goneAt": pace.gone_ms}
