"""``GET /v1/forecast``: when each budget is gone at the present pace, with the band of the last days."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypedDict

from flask import Flask, Response

from timekeeper.accounts.balance import Statement
from timekeeper.accounts.budget_history import GROUP, is_group
from timekeeper.accounts.decisions.forecasts import DAYS, Addition, Forecast, Pace, forecast, within
from timekeeper.accounts.usage import ReportQuery
from timekeeper.api.http.answers import Paged, answer
from timekeeper.api.http.parameters import AFTER, LIMIT, SUBJECT_AS_NAMESPACE, cursor, shaped
from timekeeper.api.http.routes import JSON, ApiRoute, Call, Right, serve
from timekeeper.api.http.services import Services
from timekeeper.api.ledger.ledger_reader import AccountReading
from timekeeper.api.ledger.protected_reading import ProtectedReading
from timekeeper.api.resources.budgets import DecidingAnswer, deciding_answer
from timekeeper.core.ledger.metering import FOREVER_MS, Interval, period_at
from timekeeper.store import ledger


class PaceAnswer(TypedDict):
    """`rateMilli`: in thousandths of a weighted GPU; `goneAt`: when the budget is used up at it, null: not in
    this period."""

    rateMilli: int
    goneAt: int | None


class ProtectedPaceAnswer(TypedDict):
    """Of the pods that `protect` selects. `rateMilli`: their rate now, in thousandths of a weighted GPU;
    `usedUpAt`: when a floor of hours is used up at it, null: not in this period, or it is, or the floor is of
    cards."""

    rateMilli: int
    usedUpAt: int | None


class ForecastAnswer(TypedDict):
    """A namespace or group. `remaining`: of its own, null if unlimited; `to`: its period's end, null if it
    has none; `deciding`: the account that says how much may be spent; `now`: at the rate of the pods that
    run; `fastest`, `slowest`: the band, at the largest and smallest of this and of the paces of the last 7
    whole days. Of a namespace `goneAt` is the earlier of its own end and of its group's at the group's pace.
    `protected`: null if the entry protects no pods."""

    namespace: str
    standing: str
    remaining: int | None
    to: int | None
    deciding: DecidingAnswer
    now: PaceAnswer
    fastest: PaceAnswer
    slowest: PaceAnswer
    protected: ProtectedPaceAnswer | None


class ForecastsAnswer(Paged):
    """Namespaces by name; after the last of them all groups."""

    days: int
    forecasts: list[ForecastAnswer]


FORECAST = ApiRoute(
    path="/v1/forecast",
    about="when each budget is gone at the present pace, and the band of the last days",
    right=Right("get", "budgets"),
    answers={JSON: ForecastsAnswer},
    parameters=(SUBJECT_AS_NAMESPACE, LIMIT, AFTER),
)


ROUTES = (FORECAST,)


def register(app: Flask, services: Services) -> None:
    """Add the routes."""

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
        found = list(map(paces.of, accounts))
        return answer(ForecastsAnswer(version=1, days=DAYS, forecasts=found, next=page), page)

    serve(app, services, FORECAST, forecasts)


class Paces:
    """The rates now and the charges of the last days, by namespace and by group: of all, or of a namespace
    and its group, or of a group."""

    def __init__(self, services: Services, subject: str) -> None:
        zone, self._now_ms = services.ledger.calendar()
        namespace = subject if subject and not is_group(subject) else None
        with services.ledger.store.reading() as connection:
            history = services.ledger.history(connection)
            group = history.group(namespace, self._now_ms) if namespace else subject.removeprefix(GROUP)
            names: tuple[str, ...] | None = (namespace,) if namespace else None
            if group:
                listed = ledger.namespaces(connection)
                names = tuple(name for name in listed if history.group(name, self._now_ms) == group)
            self._rates: dict[str, int] = defaultdict(int, ledger.open_rates(connection, names))
        for name, rate in list(self._rates.items()):
            if theirs := history.group(name, self._now_ms):
                self._rates[GROUP + theirs] += rate
        today_ms = first_ms = period_at("day", zone, self._now_ms).start_ms
        for _ in range(DAYS):
            first_ms = period_at("day", zone, first_ms - 1).start_ms
        asked = ReportQuery(
            span=Interval(first_ms, today_ms),
            columns=("namespace",),
            now_ms=self._now_ms,
            namespace=namespace,
            step="day",
            zone=zone,
        )
        self._days: dict[str, Mapping[int, int]] = {}
        if not is_group(subject):
            self._days |= _days(services, asked, "")
        if group or namespace is None:
            of_group = replace(asked, namespace=None, columns=("group",), group=group)
            self._days |= _days(services, of_group, GROUP)

    def of(self, account: AccountReading, additions: Sequence[Addition] = ()) -> ForecastAnswer:
        """The account's forecast. ``additions``: pods that are supposed beside those that there are."""
        statement, name = account.statement, account.namespace
        found = self._forecast(name, statement, additions)
        if statement.group is not None:
            group = GROUP + statement.in_force.budget.group
            found = within(found, self._forecast(group, statement.group, additions))
        ends_ms = statement.ends_ms
        return {
            "namespace": name,
            "standing": account.statement.standing,
            "remaining": statement.balance.remaining,
            "to": None if ends_ms >= FOREVER_MS else ends_ms,
            "deciding": deciding_answer(account),
            "now": _shown(found.now),
            "fastest": _shown(found.fastest),
            "slowest": _shown(found.slowest),
            "protected": _protected(account.protected, self._now_ms),
        }

    def _forecast(self, name: str, statement: Statement, additions: Sequence[Addition]) -> Forecast:
        """Of one account alone."""
        charged = self._days.get(name, {})
        days = [*charged.values(), *([0] * (DAYS - len(charged)))]
        remaining, ends_ms = statement.balance.remaining, statement.ends_ms
        return forecast(remaining, self._rates[name], days, self._now_ms, additions, ends_ms)


def _days(services: Services, asked: ReportQuery, prefix: str) -> dict[str, Mapping[int, int]]:
    """Key -> beginning of the day -> its pace, by what is posted and pending and the day's length."""
    found: dict[str, dict[int, int]] = defaultdict(dict)
    for line in services.ledger.lines(asked, None):
        found[prefix + line.key[0]][line.span.start_ms] = line.sums.amount // line.span.length_ms
    return dict(found)


def _protected(reading: ProtectedReading | None, now_ms: int) -> ProtectedPaceAnswer | None:
    if reading is None:
        return None
    return {"rateMilli": reading.rate_milli, "usedUpAt": reading.used_up_ms(now_ms)}


def _shown(pace: Pace) -> PaceAnswer:
    return {"rateMilli": pace.milli, "goneAt": pace.gone_ms}
