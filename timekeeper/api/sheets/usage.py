"""Charges, and the months of a bill."""

from collections.abc import Iterator

from timekeeper.api.sheets.sheet import (
    AMOUNT,
    DECIMAL,
    GROUP,
    HASH,
    INTEGER,
    MONTH_OF,
    NAMESPACE,
    NODE,
    OWNER,
    PERCENT,
    POD,
    SENTENCE,
    TEXT,
    TIME,
    CellKind,
    Column,
    Json,
    Sheet,
)
from timekeeper.core.texts import hours, moment

HOUR_MS = 3_600_000  # measured use is kept by the hour


def busy(row: Json) -> tuple[int, int]:
    """What was used of what was measured: of a card that the pod has a part of, that part at most."""
    measured = int(row["measured"] or 0)
    return measured - int(row["unused"] or 0), measured


def _group(key: str, title: str, kind: CellKind, about: str) -> Column:
    """A column that charges are grouped by; pods without a value have a row too."""
    return kind(key, title, about, lambda raw: raw[key] or None)


def _label(name: str) -> Column:
    title = f"label:{name}"
    return TEXT(title, title, f"the pods' label {name}", lambda raw: raw["labels"][name] or None)


_FROM = TIME("from", "From", "the beginning of the row's time")
_TO = TIME("to", "To", "its end")
_STEP = TEXT("step", "Step", "the calendar's name of the row's hour, day or month, of a report `by` it")
_GPU_HOURS = AMOUNT("gpuHours", "GPU-hours", "charged, posted and pending", "amount")
_GROUPS = (
    _FROM,
    _TO,
    _STEP,
    _group("namespace", "Namespace", NAMESPACE, "whose account pays"),
    _group("group", "Group", GROUP, "of the namespace"),
    _group("pod", "Pod", POD, "that held cards, or the name of a claim"),
    _group("uid", "UID", TEXT, "of the pod, or of the claim's allocation"),
    _group("owner", "Owner", OWNER, "the pods' controller"),
    _group("workload", "Workload", OWNER, "the topmost by names and labels: of a Job its CronJob"),
    _group("node", "Node", NODE, "where the cards are"),
    _group("models", "Models", TEXT, "of the cards"),
    _group("claim", "Claim", TEXT, "the device claim"),
    _group("classes", "Classes", TEXT, "of the claim's devices"),
    _group("drivers", "Drivers", TEXT, "of the claim's devices"),
    _group("devices", "Devices", TEXT, "of the claim"),
)
_FIGURES = (
    _GPU_HOURS,
    PERCENT("busy", "Busy", "how much of what was measured was used", busy),
    AMOUNT("requestedGpuHours", "Requested, unweighted", "what the pods held, by cards alone", "requested"),
)


def _shown(answer: Json) -> Iterator[Column]:
    """What the rows were grouped by, and the figures that were asked for."""
    row: Json = next(iter(answer["rows"]), {})
    yield from (each for each in _GROUPS if each.key in row)
    yield from map(_label, row.get("labels", ()))
    yield from (_FIGURES if "requested" in row else (_GPU_HOURS,))


def _by_the_hour(answer: Json, _now_ms: int) -> Iterator[str]:
    """From when on use is measured in a time that begins within an hour."""
    if not any("measured" in row for row in answer["rows"]):
        return
    if any(row["measured"] is None for row in answer["rows"]):
        yield "Use that was measured longer ago than --retain-use is not kept."
    hour_ms = -(-answer["from"] // HOUR_MS) * HOUR_MS
    if hour_ms != answer["from"]:
        yield f"Measured by the hour: from {moment(hour_ms)}."


USAGE = Sheet(
    columns=(*_GROUPS, *_FIGURES),
    rows=lambda answer: answer["rows"],
    empty="nothing was charged in this time",
    chosen=_shown,
    notes=_by_the_hour,
)
_IN_HOURS = "the same in GPU-hours"
_PRICED = (
    DECIMAL("price", "Price", "of a weighted GPU-hour, as it was in force; empty without one"),
    TEXT("currency", "Currency", "of the price"),
)
CHARGED = (
    INTEGER("posted", "Posted", "charged, in milli-GPU x ms"),
    INTEGER("pending", "Pending", "charged, and not posted yet"),
    INTEGER("amount", "Amount", "their sum"),
    DECIMAL("gpuHours", "GPU-hours", _IN_HOURS),
    DECIMAL("cost", "Cost", "the charge x the price; empty without one"),
)
OF_USE = (
    INTEGER("requested", "Requested", "what the pods held, unweighted, in the time they were charged for"),
    INTEGER("measured", "Measured", "of that, what was measured; empty where that is not kept"),
    INTEGER("used", "Used", "what was used then"),
    INTEGER("unused", "Unused", "what was measured and not used, by session and hour"),
    TEXT("usedBy", "Used by", "the source of these figures"),
    DECIMAL("requestedGpuHours", "Requested", _IN_HOURS),
    DECIMAL("measuredGpuHours", "Measured", _IN_HOURS),
    DECIMAL("usedGpuHours", "Used", _IN_HOURS),
)
OF_CORRECTIONS = (
    SENTENCE("correction", "Correction", "its reason, author, and the month of the wrong charge"),
)
OF_CLUSTERS = (TEXT("clusterName", "Cluster", "the month's"),)
REPORT = Sheet(
    columns=(*_GROUPS, *_PRICED, *CHARGED, *OF_USE, *OF_CORRECTIONS, *OF_CLUSTERS),
    rows=lambda answer: answer["rows"],
)
_PARTS = {"charges": "charges", "grantsMade": "grants", "prices": "prices", "sha256": "all"}


def _hashes(answer: Json) -> Iterator[Json]:
    """A row for each hash of a month."""
    closed = answer["closed"]
    for name, part in _PARTS.items():
        same = closed is not None and closed["hashes"][name] == answer["now"][name]
        word = "not closed" if closed is None else "unchanged" if same else "changed"
        yield {"part": part, "now": answer["now"][name], "closed": word}


def _month_sentences(answer: Json, _now_ms: int) -> Iterator[str]:
    """In which state the month is, and what changed since it was closed."""
    now = answer["now"]
    used = f"{hours(now['amount'])} GPU-hours of {now['sessions']} sessions"
    yield f"{answer['month']} has {used}, and {now['grants']} grants."
    match answer["state"]:
        case "future":
            yield f"It begins at {moment(answer['from'])}."
        case "before":
            yield "The ledger began after it, so it is never closed."
        case "runs":
            yield f"It runs until {moment(answer['to'])}."
        case "waits":
            few = answer["waitsFor"] == 1
            sessions = "1 session that is" if few else f"{answer['waitsFor']} sessions that are"
            yield f"It waits for {sessions} not settled, with the last evidence in the month."
            yield from (f"For {awaited}, once nothing of it runs." for awaited in answer["awaited"])
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


MONTH = Sheet(
    columns=(
        TEXT("part", "Of", "what of the month the hash is of"),
        HASH("now", "SHA-256 now", "of what the ledger has now"),
        TEXT("closed", "Since its close", "whether it is as it was then"),
    ),
    rows=_hashes,
    notes=_month_sentences,
    has_answer=True,
)
CORRECTIONS = Sheet(
    columns=(
        TIME("created", "Created", "when it was made, in whose month it is billed"),
        NAMESPACE("namespace", "Namespace", "whose charge was wrong"),
        POD("pod", "Pod", "empty for none in particular"),
        DECIMAL("gpuHours", "GPU-hours", "exactly; negative where a charge is taken back"),
        MONTH_OF("at", "Of", "the month of the wrong charge"),
        TEXT("actor", "By", "the user that made it"),
        SENTENCE("reason", "Reason", "as the person wrote it"),
    ),
    rows=lambda answer: answer["corrections"],
    empty="there are no corrections",
)
MONTHS = Sheet(
    columns=(
        TEXT("month", "Month", "in the time zone of the budgets"),
        TIME("closed", "Closed", "when it was closed"),
        AMOUNT("gpuHours", "GPU-hours", "charged in it", lambda raw: raw["hashes"]["amount"]),
        HASH("sha256", "SHA-256", "of all that was charged and granted", lambda raw: raw["hashes"]["sha256"]),
    ),
    rows=lambda answer: answer["months"],
    empty="no month is closed yet",
)
