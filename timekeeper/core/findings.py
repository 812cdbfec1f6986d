"""What the timekeeper finds wrong with itself, with its charges and with the use of cards: a catalogue, and
findings as codes with figures. `GET /v1/findings` has all; `kubectl bursar doctor` and the dashboard show
them. Also sentences on entries with mistakes and on estimates."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from timekeeper.core.json_values import Json
from timekeeper.core.texts import age, moment, percent

FindingLevel = Literal["ok", "warning", "error"]
_MOST = 5


@dataclass(frozen=True, slots=True)
class FindingKind:
    """A row of the catalogue. ``about``: what was looked at; ``sentence``: with the figures by their names,
    ``of_one``: where ``number`` is 1; ``todo``: what mends it or shows more, "": nothing is to be done.
    ``{logs}`` shows the timekeeper's log, ``{classes}`` makes the priority classes."""

    level: FindingLevel
    about: str
    sentence: str
    of_one: str = ""
    todo: str = ""


_CHARGES = "read docs/meter.md#what-is-charged; GET /v1/doubts has all"
_CLAIMS = "read docs/claims.md; GET /v1/doubts has all"
_USE = "read docs/meter.md#use-and-idle-pods; GET /v1/idle has all"
_HOLD = "devices by resource claims alone, uncharged, for claims are not followed: {where}"
_LEFT = "reserved for no pod that is left: charged until deleted, or used again: {claims}"
CATALOGUE: Mapping[str, FindingKind] = {
    "settler-away": FindingKind(
        "error",
        "watches",
        "the settler has written nothing since {since}, and figures stand as of then: pods run on, and"
        " nothing is lost, for this time is charged once it is back; until then no held pod is released"
        " and no budget evicts (kubectl bursar doctor)",
        todo="{logs}",
    ),
    "watch-fails": FindingKind(
        "error",
        "watches",
        "{source} are not followed since {since}: {error}; what changes counts later",
        todo="{logs}",
    ),
    "doubt": FindingKind(
        "warning",
        "charges",
        "the rates of {number} running sessions are not certain: {doubt}",
        "the rate of 1 running session is not certain: {doubt}",
        _CHARGES,
    ),
    "other-doubts": FindingKind(
        "warning",
        "charges",
        "the rates of {number} running sessions are not certain for other reasons",
        "the rate of 1 running session is not certain for other reasons",
        _CHARGES,
    ),
    "no-doubt": FindingKind("ok", "charges", "the rate of each running session is certain"),
    "claims-not-followed": FindingKind(
        "warning",
        "resource claims",
        f"{{number}} pods hold {_HOLD}",
        f"1 pod holds {_HOLD}",
        _CHARGES,
    ),
    "orphan-claims": FindingKind(
        "warning",
        "device claims",
        f"{{number}} claims hold devices and are {_LEFT}",
        f"1 claim holds devices and is {_LEFT}",
        _CLAIMS,
    ),
    "unknown-driver": FindingKind(
        "warning",
        "device claims",
        "devices of {driver} are not charged ({number} claims): no rule says which of them are GPUs",
        "devices of {driver} are not charged (1 claim): no rule says which of them are GPUs",
        _CLAIMS,
    ),
    "idle-pods": FindingKind(
        "warning",
        "use",
        "{number} pods have used none of their cards for {after} or longer: {where}",
        "1 pod has used none of its cards for {after} or longer: {where}",
        _USE,
    ),
    "not-measured": FindingKind("warning", "use", "use of cards by Prometheus: {problem}", todo=_USE),
    "measured": FindingKind("ok", "use", "Prometheus measures {pods} metered pods"),
    "no-class": FindingKind(
        "warning",
        "priority classes",
        "{classes} does not exist",
        todo="{classes}, or name yours in _settings",
    ),
    "class-order": FindingKind(
        "error",
        "priority classes",
        "{over} ({overValue}) is not below {within} ({withinValue})",
        todo="{classes}",
    ),
    "classes": FindingKind("ok", "priority classes", "both exist"),
}


@dataclass(frozen=True, slots=True)
class RoleFinding:
    """Times in milliseconds: ``since`` since 1970, ``after`` a length."""

    code: str
    figures: Mapping[str, int | str]

    @property
    def kind(self) -> FindingKind:
        """Its row of the catalogue."""
        return CATALOGUE[self.code]

    @property
    def sentence(self) -> str:
        """For people."""
        shown = dict(self.figures)
        for name, text in (("since", moment), ("after", age)):
            if name in shown:
                shown[name] = text(int(shown[name]))
        is_one = self.kind.of_one and self.figures.get("number") == 1
        return (self.kind.of_one if is_one else self.kind.sentence).format(**shown)


def of_doubts(answer: Json) -> Iterator[RoleFinding]:
    """Of the settler and its watches, of the most frequent doubts, and of claims. ``answer``: of
    ``/v1/doubts``."""
    if since_ms := answer.get("silentSince"):
        yield RoleFinding("settler-away", {"since": since_ms})
    for watch in answer.get("watches") or ():
        yield RoleFinding("watch-fails", {name: watch[name] for name in ("source", "since", "error")})
    left = answer["sessions"]
    for doubt in answer["doubts"][:_MOST]:
        left -= doubt["sessions"]
        yield RoleFinding("doubt", {"number": doubt["sessions"], "doubt": doubt["doubt"]})
    if left:
        yield RoleFinding("other-doubts", {"number": left})
    if not answer["sessions"]:
        yield RoleFinding("no-doubt", {})
    claims = answer["claims"] or ()
    if pods := sum(space["pods"] for space in claims):
        where = ", ".join(f"{space['namespace'] or 'others'} ({space['pods']})" for space in claims)
        yield RoleFinding("claims-not-followed", {"number": pods, "where": where})
    claimed = answer.get("deviceClaims") or {}
    if number := claimed.get("orphans"):
        named = [f"{claim['namespace']}/{claim['claim']}" for claim in claimed["named"][:_MOST]]
        named += [f"and {number - len(named)} more"] if number > len(named) else []
        yield RoleFinding("orphan-claims", {"number": number, "claims": ", ".join(named)})
    for driver in claimed.get("unknownDrivers", ()):
        yield RoleFinding("unknown-driver", {"number": driver["claims"], "driver": driver["driver"]})


def of_use(answer: Json) -> Iterator[RoleFinding]:
    """How many pods have been idle for long, and where; and what is wrong with their measurement. ``answer``:
    of ``/v1/idle``."""
    long = [pod["namespace"] for pod in answer["pods"] if pod["seen"] - pod["since"] >= answer["after"]]
    if long:
        counted = Counter(long).most_common(_MOST)
        others = len(long) - sum(number for _, number in counted)
        where = ", ".join(f"{name} ({number})" for name, number in counted)
        where += f", others ({others})" if others else ""
        yield RoleFinding("idle-pods", {"number": len(long), "after": answer["after"], "where": where})
    if prometheus := answer["prometheus"]:
        yield from (RoleFinding("not-measured", {"problem": problem}) for problem in prometheus["findings"])
        if not prometheus["findings"]:
            yield RoleFinding("measured", {"pods": prometheus["measured"]})


def of_classes(settings: Json) -> Iterator[RoleFinding]:
    """Of the priority classes that the standings name, as `wire.StandingSettings` has them. Where pods are
    metered alone none is needed."""
    if settings["mode"] == "meter":
        return
    within, over = (settings["priorityClasses"][name] for name in ("inBudget", "overBudget"))
    missing = [each["name"] for each in (within, over) if each["value"] is None]
    if missing:
        yield RoleFinding("no-class", {"classes": " or ".join(missing)})
    elif over["value"] >= within["value"]:
        names = {"over": over["name"], "within": within["name"]}
        yield RoleFinding(
            "class-order", {**names, "overValue": over["value"], "withinValue": within["value"]}
        )
    else:
        yield RoleFinding("classes", {})


def broken_sentences(answer: Json) -> Iterator[str]:
    """One for each budget entry with a mistake. ``answer``: of ``/v1/budgets``."""
    for each in answer.get("broken", ()):
        yield f"a budget entry has a mistake, so this text does not count: {each['error']}"


def estimate_sentences(answer: Json) -> Iterator[str]:
    """What a reader must know of an estimate, and what is missing. ``answer``: of ``/v1/estimate``."""
    times = f"from {moment(answer['from'])} to {moment(answer['to'])}, where the ledger begins"
    step = f"each sample stands for {answer['stepMs'] // 60_000} minutes"
    yield f"Estimated, not charged: {times}; {step}"
    known = percent(answer["knownMs"], answer["to"] - answer["from"]) or "0%"
    yield f"There are samples for {known} of this time; the rest is unknown, not zero"
    yield from answer["findings"]
