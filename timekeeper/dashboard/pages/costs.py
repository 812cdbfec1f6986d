"""What a month cost, beside the month before, and what the running month will have cost by its end."""

import codecs
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from decimal import Decimal

from timekeeper.core.ledger.metering import Interval, calendar_name, day_begins_ms
from timekeeper.core.ledger.months import month_name
from timekeeper.core.texts import GPU_HOUR, age, cell, money
from timekeeper.dashboard.api_caller import MAX_ROWS
from timekeeper.dashboard.charts import LineChart, line_chart
from timekeeper.dashboard.visits import Download, PageContent, Visit, link, part, segment

CLAIMED_BY = ("claim", "class", "driver", "device")
GROUPS = (
    "namespace",
    "group",
    "namespace,owner",
    "namespace,workload",
    "pod",
    "model",
    "node",
    "day",
    *CLAIMED_BY,
)
FORMS = {"csv": "csv", "focus": "focus-csv"}
_ROWS = 100  # in one page of the table
_MONTHS = 13  # to choose from, the newest first
_DAY_MS = 86_400_000
_WEEK_MS = 7 * _DAY_MS
_MICRO = 1_000_000  # parts of a currency in a picture
_CORRECTION = "correction"
_ALONE = ("pod", "day")  # what is not compared with other months
_FIGURES = ("price", "currency", "posted", "pending", "amount", "gpuHours", "cost")
_NO_CELLS = frozenset(("from", "to", "clusterName", *_FIGURES))


@dataclass(slots=True)
class Bill:
    """Charges under one key. ``amount`` in milli-GPU x milliseconds; ``costs`` by currency, empty without a
    price; ``prices``: of a weighted GPU-hour, as text."""

    cells: Mapping[str, str] = field(default_factory=dict)
    amount: int = 0
    costs: dict[str, Decimal] = field(default_factory=dict)
    prices: tuple[str, ...] = ()
    unpriced: int = 0  # what of the amount has no price

    def read(self, raw: Mapping[str, str]) -> None:
        """Add a row of a report, which has one for each price."""
        price, currency = raw["price"], raw["currency"]
        costs = {currency: Decimal(raw["cost"])} if price else {}
        amount, prices = int(raw["amount"]), (f"{price} {currency}",) if price else ()
        self.add(Bill({}, amount, costs, prices, 0 if price else amount))

    def add(self, other: "Bill", by: Decimal = Decimal(1)) -> None:
        """Add another one's charges, multiplied."""
        self.amount += int(other.amount * by)
        self.unpriced += int(other.unpriced * by)
        self.prices = tuple(sorted({*self.prices, *other.prices}))
        for currency, cost in other.costs.items():
            self.costs[currency] = self.costs.get(currency, Decimal(0)) + cost * by

    def later(self, pace: "Bill", times: Decimal) -> "Bill":
        """What it becomes if these charges come again so often."""
        found = Bill()
        found.add(self)
        found.add(pace, times)
        return found

    @property
    def key(self) -> tuple[str, ...]:
        """The cells; of a correction those of what it corrects."""
        return tuple(value for name, value in self.cells.items() if name != _CORRECTION)

    @property
    def rank(self) -> tuple[bool, list[str], list[Decimal], int]:
        """For an order: by currency, within it the largest cost first; last, by amount, what has no price."""
        names = sorted(self.costs)
        return not names, names, [-self.costs[name] for name in names], -self.amount

    def figure(self, currency: str) -> Decimal:
        """The cost in this currency; "": the amount."""
        return self.costs.get(currency, Decimal(0)) if currency else Decimal(self.amount)

    def text(self, is_priced: bool) -> str:
        """What it costs; or its GPU-hours."""
        if not is_priced:
            return cell(self.amount)
        return " + ".join(f"{money(cost)} {name}" for name, cost in sorted(self.costs.items()))


@dataclass(frozen=True, slots=True)
class MonthReport:
    """Bills by key, and their time in milliseconds since 1970, 0 without any."""

    bills: Mapping[tuple[str, ...], Bill]
    from_ms: int = 0
    to_ms: int = 0
    rows: int = 0

    def of(self, key: tuple[str, ...]) -> Bill:
        """The charges under a key, perhaps none."""
        return self.bills.get(key) or Bill()

    def has(self, at_ms: int) -> bool:
        """Whether its time contains the moment."""
        return self.from_ms <= at_ms < self.to_ms

    @property
    def net(self) -> "MonthReport":
        """The same with each correction in what it corrects, and not beside it."""
        bills: dict[tuple[str, ...], Bill] = {}
        for bill in self.bills.values():
            bills.setdefault(bill.key, Bill({**bill.cells, _CORRECTION: ""})).add(bill)
        return replace(self, bills=bills)

    @property
    def total(self) -> Bill:
        """The sum of all."""
        found = Bill()
        for each in self.bills.values():
            found.add(each)
        return found


@dataclass(frozen=True, slots=True)
class MonthReports:
    """Reports of several times, by their bounds in milliseconds since 1970, and those of months by name."""

    found: Mapping[tuple[int, int], MonthReport]
    months: Mapping[str, MonthReport]

    def of(self, bounds: tuple[int, int]) -> MonthReport:
        """The report of exactly this time."""
        return self.found.get(bounds) or MonthReport({})

    def of_month(self, month: str) -> MonthReport:
        """The report of this month."""
        return self.months.get(month) or MonthReport({})


@dataclass(frozen=True, slots=True)
class Comparison:
    """A month's charges under one key, those of the month before, and those by the month's end, None where
    there is nothing to compare or to expect. ``net``: with its corrections, and by the month's end if that is
    expected; those of the month before are net, too."""

    bill: Bill
    before: Bill | None = None
    expected: Bill | None = None
    net: Bill = field(default_factory=Bill)

    def change(self, is_priced: bool) -> str:
        """By how much the month, or what is expected of it, is above the month before, in each currency."""
        if self.before is None:
            return ""
        names = sorted({*self.net.costs, *self.before.costs}) if is_priced else [""]
        pairs = [(name, self.net.figure(name), self.before.figure(name)) for name in names]
        texts = {
            name: f"{100 * (now - was) / was:+.0f}%" if was else "new"
            for name, now, was in pairs
            if now or was
        }
        return ", ".join(f"{text} {name}" if len(texts) > 1 else text for name, text in texts.items())


def costs(visit: Visit) -> PageContent:
    """The largest charges of a month by what the visitor chose."""
    group, month = _group(visit), visit.text("month") or running_month(visit)
    reports = _reports(visit, group, month)
    this = reports.of_month(month)
    seen_ms = _seen_ms(visit) if this.has(visit.now_ms) and group not in _ALONE else 0
    rows, total = _compared(visit, group, month, reports, seen_ms)
    is_cut = any(report.rows >= MAX_ROWS for report in reports.found.values()) and group != "day"
    if is_cut:  # the groups are few
        total = _compared(visit, group, month, _reports(visit, "group", month), seen_ms)[1]
    shown, first, earlier, later = visit.page_of(rows, _ROWS)
    hidden = ("uid", _CORRECTION, "claim" if group == "pod" else "")
    asked = {name: visit.text(name) for name in ("namespace", "group", "label")}
    values = {
        **{"rows": shown, "found": len(rows), "first": first, "earlier": earlier, "later": later},
        "total": total,
        "pace": "7 days" if seen_ms == _WEEK_MS else age(seen_ms),
        "is_running": this.has(visit.now_ms),
        "is_priced": bool(total.bill.costs or (total.before and total.before.costs)),
        "is_cut": is_cut,
        "by_day": _by_day(visit, month, [row.bill for row in rows]) if group == "day" else None,
        "span": (this.from_ms, this.to_ms) if this.rows and group != "day" else None,
        "columns": [name for name in (rows[0].bill.cells if rows else ()) if name not in hidden],
        "has_corrections": any(row.bill.cells.get(_CORRECTION) for row in rows),
        "group": group,
        "label": visit.text("label"),
        "groups": GROUPS,
        "month": month,
        "before": month_before(month),
        "months": sorted({month, *_months(visit)}, reverse=True),
        "files": {form: link(f"/costs/{form}", month=month, **asked) for form in FORMS},
    }
    return PageContent("costs.html", values)


def _by_day(visit: Visit, month: str, bills: Sequence[Bill]) -> LineChart | None:
    """The picture of a month's days: what each cost, by currency; without a price its GPU-hours. A day
    without a charge between others cost nothing."""
    days = {date.fromisoformat(bill.cells["day"]): bill for bill in bills}
    names, zone = sorted({name for bill in bills for name in bill.costs})[:3], str(visit.zone)
    unit, text = (_MICRO, lambda micro: money(Decimal(micro) / _MICRO)) if names else (int(GPU_HOUR), cell)
    steps, factor = [], _MICRO if names else 1
    for day in (min(days) + timedelta(at) for at in range((max(days) - min(days)).days + 1)) if days else ():
        begin_ms, end_ms = day_begins_ms(day, zone), day_begins_ms(day + timedelta(1), zone)
        bill = days.get(day) or Bill()
        figures = tuple(int(factor * bill.figure(name)) for name in names or ("",))
        steps.append((begin_ms, end_ms, end_ms - begin_ms, figures))
    lines = dict(zip(("left", "ahead", "free"), names or ("GPU-hours",), strict=False))
    return line_chart(f"Costs of {month} by day", lines, steps, unit, text, visit.zone)


def _compared(
    visit: Visit, group: str, month: str, reports: MonthReports, seen_ms: int
) -> tuple[list[Comparison], Comparison]:
    """Each key's charges with those to compare, and their sums; last what only the month before has.
    ``seen_ms``: see `_seen_ms`."""
    this = reports.of_month(month)
    if group in _ALONE:
        return [Comparison(each) for each in this.bills.values()], Comparison(this.total)
    net, before = this.net, reports.of_month(month_before(month)).net
    week = reports.of(_week(visit)).net if seen_ms else MonthReport({})
    rest = Decimal(this.to_ms - visit.now_ms) / (seen_ms or 1)

    def compared(bill: Bill, then: Bill, pace: Bill, whole: Bill) -> Comparison:
        expected = bill.later(pace, rest) if seen_ms else None
        return Comparison(bill, then, expected, whole.later(pace, rest))

    def row(bill: Bill) -> Comparison:
        is_compared = not bill.cells.get(_CORRECTION)
        return compared(
            bill, *(other.of(bill.key) if is_compared else Bill() for other in (before, week, net))
        )

    charged = {bill.key for bill in this.bills.values() if not bill.cells.get(_CORRECTION)}
    gone = (Bill(bill.cells) for key, bill in before.bills.items() if key not in charged)
    rows = list(map(row, (*this.bills.values(), *gone)))
    return rows, compared(this.total, before.total, week.total, this.total)


def _seen_ms(visit: Visit) -> int:
    """How much of the last week the ledger has seen; 0: less than a day, which tells no pace."""
    scope = None if visit.namespace.startswith("_") else visit.scope
    found = part(lambda: visit.api.get("/v1/would", namespace=scope, from_=visit.now_ms, limit=1)).answer
    if found is None:
        return _WEEK_MS  # a visitor without the right to read it
    seen_ms = min(_WEEK_MS, visit.now_ms - (found["began"] or visit.now_ms))
    return seen_ms if seen_ms >= _DAY_MS else 0


def download(visit: Visit, form: str) -> Download:
    """The report as a file for spreadsheets (csv), or for tools that read FOCUS (focus). By the byte order
    mark Excel knows that the text is UTF-8."""
    month = visit.text("month") or running_month(visit)
    query = {} if form == "focus" else _query(visit, _group(visit))
    how = "focus" if form == "focus" else f"by-{re.sub('[^a-z0-9]+', '-', _group(visit).lower())}"
    name = "-".join(filter(None, ("bursar", month, visit.namespace.lstrip("_"), how)))
    answer = visit.api.stream("/v1/usage", namespace=visit.scope, month=month, format=FORMS[form], **query)
    return Download(f"{name}.csv", answer, b"" if form == "focus" else codecs.BOM_UTF8)


def running_month(visit: Visit) -> str:
    """The month that runs in the budgets' time zone, as 2026-11."""
    return calendar_name("month", str(visit.zone), visit.now_ms)


def month_before(month: str) -> str:
    """The month before this one; "" of a text that is no month."""
    try:
        first = date.fromisoformat(f"{month}-01")
        return f"{first - timedelta(days=1):%Y-%m}"
    except (ValueError, OverflowError):
        return ""


def _months(visit: Visit) -> list[str]:
    """The newest months."""
    found = [running_month(visit)]
    while len(found) < _MONTHS:
        found.append(month_before(found[-1]))
    return found


def _group(visit: Visit) -> str:
    label = visit.text("label")
    return f"label:{label}" if label else visit.text("group") or GROUPS[0]


def _query(visit: Visit, group: str) -> dict[str, str | None]:
    """The columns of a report, the largest charges first; of days the earliest."""
    if group != "day":
        return {"group": group, "sort": "-gpuHours"}
    by = {"by": "day", "timeZone": str(visit.zone)}
    return {"group": "group" if visit.namespace.startswith("_") else "namespace", **by}


def _reports(visit: Visit, group: str, month: str) -> MonthReports:
    """The month's report, and beside it those of the month before and of the last week, in one answer."""
    asked = {**_query(visit, group), "month": month, "beside": _beside(visit, group, month)}
    # of a pod its page, or the claim's; of days the fewest rows
    asked |= {"pod": {"group": "pod,claim"}, "day": {"group": "group"}}.get(group, {})
    rows = visit.api.table("/v1/usage", namespace=visit.scope, format="csv", limit=MAX_ROWS, **asked)
    by_time: dict[tuple[str, str], list[Mapping[str, str]]] = {}
    for raw in rows:
        by_time.setdefault((raw["from"], raw["to"]), []).append(raw)
    if group == "day":  # a time for each row
        by_time = {(rows[0]["from"], rows[-1]["to"]): [*rows]} if rows else {}
    found = {(_ms(start), _ms(end)): (start, end) for start, end in by_time}
    paid = {at: by_time[texts] for at, texts in found.items()}
    if (week := _week(visit)) in paid:  # whose corrections tell no pace
        paid[week] = [raw for raw in paid[week] if not raw.get(_CORRECTION)]
    reports = {at: _report(group, *at, rows) for at, rows in paid.items()}
    named = {month_name(Interval(*at)): report for at, report in reports.items() if at != week}
    return MonthReports(reports, named)


def _beside(visit: Visit, group: str, month: str) -> str | None:
    """The times to compare a month with."""
    if group in _ALONE or not month_before(month):
        return None
    week = ["/".join(map(str, _week(visit)))] if month == running_month(visit) else []
    return ",".join([month_before(month), *week])


def _week(visit: Visit) -> tuple[int, int]:
    return visit.now_ms - _WEEK_MS, visit.now_ms


def _report(group: str, from_ms: int, to_ms: int, rows: list[Mapping[str, str]]) -> MonthReport:
    bills: dict[tuple[str, ...], Bill] = {}
    for raw in rows:
        cells = {name: value for name, value in raw.items() if name not in _NO_CELLS}
        if group == "day":
            cells = {"day": raw["step"]}
        bills.setdefault(tuple(cells.values()), Bill(cells)).read(raw)
    if group != "day":
        bills = dict(sorted(bills.items(), key=lambda each: each[1].rank))
    return MonthReport(bills, from_ms, to_ms, len(rows))


def _ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def months(visit: Visit) -> PageContent:
    """The closed months, the newest first."""
    return PageContent("months.html", {"months": visit.api.get("/v1/months")["months"], "month": None})


def month(visit: Visit, month: str) -> PageContent:
    """One month with its hashes now and then, and the corrections of its charges."""
    answer = visit.api.get(f"/v1/months/{segment(month)}")
    return PageContent("months.html", {"months": (), "month": answer})
