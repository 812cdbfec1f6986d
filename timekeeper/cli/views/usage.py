"""Use and sessions as sheets."""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from timekeeper.cli.output import Column, Sheet, listing
from timekeeper.core.texts import age, gpus, hours, moment, percent, short

_GPU_HOURS = Column("gpuHours", "GPU-HOURS", True)
_USE = (Column("requestedGpuHours", "REQUESTED", True), Column("busy", "BUSY", True))
_STRANDED = (Column("strandedGpuHours", "STRANDED", True), Column("known", "KNOWN FOR", True))
_SESSIONS = (
    Column("namespace", "NAMESPACE"),
    Column("pod", "POD"),
    Column("node", "NODE"),
    Column("models", "MODEL"),
    Column("cards", "CARDS", True),
    Column("gpus", "GPUS", True),
    Column("used", "BUSY", True),
    Column("age", "AGE", True),
    _GPU_HOURS,
    Column("state", "STATE"),
    Column("admitted", "ADMITTED"),
    Column("devices", "DEVICES"),
)
_OF_PODS = _SESSIONS[:-1]  # where no claim holds devices
_ADMITTED = {True: "in budget", False: "over budget"}
_SESSION_STYLES = {"over budget": "bold red"}
_CHARGE, _USE_FIGURES = (
    ("posted", "pending", "amount", "gpuHours"),
    ("requested", "measured", "used", "usedBy"),
)
_FIGURES = (*_CHARGE, *_USE_FIGURES, "stranded", "strandedKnown")
_USE_HOURS = ("requestedGpuHours", "measuredGpuHours", "usedGpuHours")
_SUMS = (*_CHARGE, "requested", "measured", "used", *_USE_HOURS)
_NO_CHARGE = "nothing was charged in this time"
_BILL_TIME = (Column("from", "FROM"), Column("to", "TO"))
_BILL = (
    _GPU_HOURS,
    Column("price", "PRICE", True),
    Column("cost", "COST", True),
    Column("currency", "CURRENCY"),
    *_USE,
)


def usage(answer: Any) -> Sheet:
    """A row for each charge, by the columns that it was grouped by; a label is one of them."""
    rows = [_flat(row) for row in answer["rows"]]
    keys = tuple(dict.fromkeys(key for row in rows for key in row if key not in _FIGURES))
    with_use = any("requested" in row for row in rows)
    columns = [Column(key, key.upper(), blank="<none>") for key in keys]
    columns.append(_GPU_HOURS)
    if with_use:
        columns += _USE
    if any("stranded" in row for row in rows):
        columns += _STRANDED
    shown = tuple(_charge(row, keys) for row in rows)
    return Sheet(tuple(columns), shown, listing(answer, "rows"), empty=_NO_CHARGE)


def _flat(raw: Any) -> dict[str, Any]:
    labels = {f"label:{name}": value for name, value in raw.get("labels", {}).items()}
    return {**{key: value for key, value in raw.items() if key != "labels"}, **labels}


def _charge(raw: Any, keys: tuple[str, ...]) -> dict[str, str]:
    times: dict[str, str] = {key: moment(raw.get(key)) for key in ("from", "to") if key in keys}
    return {
        **{key: _text(raw.get(key)) for key in keys if key not in times},
        **times,
        "gpuHours": hours(raw["amount"]),
        "requestedGpuHours": hours(raw.get("requested", 0)),
        "busy": percent(raw.get("used", 0), raw.get("measured")),
        "strandedGpuHours": hours(raw.get("stranded", 0)),
        "known": age(raw.get("strandedKnown", 0)),
    }


def report(text: str) -> Sheet:
    """The sheet of the API's CSV with the total below; a column without any value is left out."""
    reader = csv.DictReader(io.StringIO(text))
    bill = list(reader)
    rows = tuple(_billed(raw) for raw in bill)
    names = list(reader.fieldnames or ())
    keys = names[names.index("to") + 1 : names.index("price")]
    figures = tuple(each for each in _BILL if any(row[each.key] for row in rows))
    for name, title in (("correction", "CORRECTION"), ("clusterName", "CLUSTER")):
        figures += (Column(name, title),) if name in names else ()
    columns = (*_BILL_TIME, *(Column(key, key.upper(), blank="<none>") for key in keys), *figures)
    total = _total(bill, [each for each in _SUMS if each in names])
    answer = {"items": bill, "total": total}
    return Sheet(columns, rows, answer, empty=_NO_CHARGE, totals=tuple(_totals(total)) if rows else ())


def _total(bill: Sequence[Mapping[str, str]], figures: Iterable[str]) -> dict[str, Any]:
    """The sums of a bill's figures, under their names and as text, as in its rows; ``costs``: by currency, of
    the rows with a price."""
    sums = {name: _sum(raw[name] for raw in bill) for name in figures}
    currencies = sorted({raw["currency"] for raw in bill if raw["cost"]})
    costs = [
        {"cost": _sum(raw["cost"] for raw in bill if raw["currency"] == currency), "currency": currency}
        for currency in currencies
    ]
    return {**sums, "costs": costs}


def _sum(figures: Iterable[str]) -> str:
    """The sum of decimal numbers, of which an empty one is 0."""
    return f"{sum((Decimal(each or 0) for each in figures), Decimal(0)).normalize():f}"


def _totals(total: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """The total as rows of the table: the first has the hours, and each has the cost in one currency."""
    sums = {
        "from": "TOTAL",
        "gpuHours": hours(int(total["amount"])),
        "requestedGpuHours": hours(int(total["requested"])),
        "busy": percent(int(total["used"]), int(total["measured"])),
    }
    costs = [{"cost": _money(each["cost"]), "currency": each["currency"]} for each in total["costs"]]
    yield {**sums, **(costs[0] if costs else {})}
    yield from costs[1:]


def _billed(raw: Mapping[str, str]) -> dict[str, str]:
    return {
        **raw,
        **{key: f"{raw[key][:10]} {raw[key][11:16]}Z" for key in ("from", "to")},
        "cost": _money(raw["cost"]),
        "currency": raw["currency"] if raw["price"] else "",
        "gpuHours": hours(int(raw["amount"])),
        "requestedGpuHours": hours(int(raw["requested"] or 0)),
        "busy": percent(int(raw["used"] or 0), int(raw["measured"] or 0)),
    }


def _money(cost: str) -> str:
    """A cost with two decimals, or two digits of a small one; "" without a price."""
    return short(Decimal(cost)) if cost else ""


_ESTIMATE = (
    Column("estimated", ""),
    Column("namespace", "NAMESPACE"),
    Column("models", "MODEL", blank="<unknown>"),
    _GPU_HOURS,
    Column("price", "PRICE", True),
    Column("cost", "COST", True),
    Column("currency", "CURRENCY"),
)
_ESTIMATED_BUDGETS = (
    Column("estimated", ""),
    Column("subject", "NAMESPACE"),
    Column("period", "PERIOD"),
    Column("granted", "GRANTED", True),
    Column("amount", "USED", True),
    Column("left", "LEFT", True),
    Column("spentAt", "SPENT AT"),
)
_ESTIMATED = "estimated"


def estimated(answer: Any) -> Sheet:
    """A row for each namespace and model."""
    rows = tuple(
        {
            **{key: raw[key] for key in ("namespace", "models", "price")},
            "estimated": _ESTIMATED,
            "gpuHours": hours(raw["amount"]),
            "cost": _money(raw["cost"] or ""),
            "currency": raw["currency"] if raw["price"] else "",
        }
        for raw in answer["rows"]
    )
    return Sheet(
        _ESTIMATE, rows, listing(answer, "rows"), empty="no pod is known to have held devices in this time"
    )


def estimated_budgets(answer: Any) -> Sheet:
    """A row for each budget."""
    rows = tuple(
        {
            **{key: raw[key] for key in ("subject", "period")},
            "estimated": _ESTIMATED,
            **{key: hours(raw[key]) for key in ("granted", "amount", "left")},
            "spentAt": moment(raw["spentAt"]),
        }
        for raw in answer["budgets"]
    )
    return Sheet(_ESTIMATED_BUDGETS, rows, listing(answer, "budgets"), empty="no budget has a limit")


def sessions(listed: Iterable[Any], answer: Any, now_ms: int, busy: Mapping[str, str]) -> Sheet:
    """A row for each session; a claim's is named claim/NAME. ``busy``: pod UID -> how much of its cards was
    used lately."""
    rows = tuple(
        {
            **{key: raw[key] for key in ("namespace", "node", "models", "state")},
            "pod": f"claim/{raw['pod']}" if raw.get("kind") == "claim" else raw["pod"],
            "cards": str(len(raw["cards"]) or len(raw.get("devices", ())) or ""),
            "devices": ",".join(_device(each) for each in raw.get("devices", ())),
            "gpus": gpus(raw["rateMilli"]),
            "used": busy.get(raw["uid"], ""),
            "age": age((raw["ended"] or raw["vanished"] or now_ms) - raw["bound"]),
            "gpuHours": hours(raw["amount"]),
            "admitted": _ADMITTED.get(raw.get("admittedInBudget"), ""),  # an older server lacks it
        }
        for raw in listed
    )
    columns = _SESSIONS if any(row["devices"] for row in rows) else _OF_PODS
    return Sheet(columns, rows, answer, _SESSION_STYLES, "no pod holds a card")


def _device(raw: Any) -> str:
    """A claim's device: POOL/DEVICE, and that it is a share of it, or admin access."""
    word = ":admin" if raw["admin"] else ":share" if raw["share"] else ""
    return f"{raw['pool']}/{raw['device']}{word}"


def busy_by_pod(answer: Any) -> dict[str, str]:
    """Pod UID -> the part of its cards' time that was used, of a report by pod with use."""
    return {row["uid"]: percent(row.get("used", 0), row.get("measured")) for row in answer["rows"]}


def _text(raw: object) -> str:
    return "" if raw is None else str(raw)


_MONTH = (Column("part", "OF"), Column("now", "SHA-256 NOW"), Column("closed", "SINCE ITS CLOSE"))
_PARTS = {"charges": "charges", "grantsMade": "grants", "prices": "prices", "sha256": "all"}
_CORRECTIONS = (
    Column("created", "CREATED"),
    Column("namespace", "NAMESPACE"),
    Column("pod", "POD"),
    Column("gpuHours", "GPU-HOURS", True),
    Column("at", "OF"),
    Column("actor", "BY"),
    Column("reason", "REASON"),
)


def month(answer: Any) -> Sheet:
    """A row for each hash of a month."""
    closed = answer["closed"]
    rows = []
    for name, part in _PARTS.items():
        same = closed is not None and closed["hashes"][name] == answer["now"][name]
        word = "not closed" if closed is None else "unchanged" if same else "changed"
        rows.append({"part": part, "now": answer["now"][name], "closed": word})
    return Sheet(_MONTH, tuple(rows), answer, {"changed": "bold red", "unchanged": "green"})


def month_sentences(answer: Any) -> Iterator[str]:
    """In which state the month is, and what changed since it was closed."""
    now, name = answer["now"], answer["month"]
    used = f"{hours(now['amount'])} GPU-hours of {now['sessions']} sessions"
    yield f"{name} has {used}, and {now['grants']} grants."
    match answer["state"]:
        case "future":
            yield f"It begins at {moment(answer['from'])}."
        case "before":
            yield "The ledger began after it, so it is never closed."
        case "runs":
            yield f"It runs until {moment(answer['to'])}."
        case "waits":
            few = answer["waitsFor"] == 1
            its = "1 session that is" if few else f"{answer['waitsFor']} sessions that are"
            yield f"It waits for {its} not settled, with the last evidence in the month."
        case "ended":
            yield "It has ended; the settler closes it an hour after its end at the earliest."
    if answer["closed"] is None:
        return
    since = moment(answer["closed"]["closed"])
    if not answer["differs"]:
        yield f"It is unchanged since it was closed at {since}."
        return
    late = answer["late"]
    yield f"It was closed at {since}; not as they were: {', '.join(answer['differs'])}."
    if late["postings"]:
        made = "1 correction" if late["postings"] == 1 else f"{late['postings']} corrections"
        yield f"Later proof made {made}, together {hours(late['amount'])} GPU-hours."


def corrections(answer: Any) -> Sheet:
    """A row for each entry that corrects a bill."""
    rows = tuple(
        {
            **{name: raw[name] for name in ("namespace", "pod", "gpuHours", "actor", "reason")},
            "created": moment(raw["created"]),
            "at": moment(raw["at"])[:7],
        }
        for raw in answer["corrections"]
    )
    return Sheet(_CORRECTIONS, rows, listing(answer, "corrections"), empty="there are no corrections")
