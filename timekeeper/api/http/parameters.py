"""The routes' parameters, each declared once with its parser."""

import base64
import binascii
import re
import zoneinfo
from datetime import UTC, date, datetime, timedelta
from typing import Any

import orjson
from msgspec import Meta

from timekeeper.accounts.usage import GROUPS, LABEL, ORDERS, TIME_STEPS
from timekeeper.api.http.routes import Parameter, check
from timekeeper.core import object_names
from timekeeper.core.ledger.metering import FOREVER_MS, day_begins_ms
from timekeeper.runtime.http.problem_details import Problem, bad
from timekeeper.wire.forms import like, sentence

MAX_ROWS = 10_000
MAX_BESIDE = 4

_DAY = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
_DAY_WITHOUT_HYPHENS = "(19|20)[0-9]{2}(0[1-9]|1[0-2])(0[1-9]|[12][0-9]|3[01])"
_CLOCK = r"[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?"
_TIME = rf"[0-9]{{1,15}}|{_DAY}[Tt]{_CLOCK}([Zz]|[+-][0-9]{{2}}:[0-9]{{2}})"
_MONTH = "[0-9]{4}-(0[1-9]|1[0-2])"
_RANGE = rf"({_MONTH}|({_TIME}|{_DAY})/({_TIME}|{_DAY}))"
_LABEL = r"([a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-._A-Za-z0-9]{0,61}[A-Za-z0-9])?"
_LABELLED = rf"{_LABEL}=[-A-Za-z0-9_.]{{0,63}}"
_GROUP = rf"({'|'.join(GROUPS)}|{LABEL}{_LABEL})"
_MAX_GROUPS = 8
_LAST_YEAR = 9997
_NO_PLACE = "it must be the `next` of an answer to the same request"

_WHEN = like(
    rf"{_TIME}|{_DAY}",
    "it must be a day such as 2026-11-01, a time such as 2026-11-01T00:00:00Z, with its zone,"
    " or milliseconds since 1970",
)
_MONTHS = like(_MONTH, "it must be a month such as 2026-10")
_GROUPED = like(
    rf"{_GROUP}(,{_GROUP}){{0,{_MAX_GROUPS - 1}}}",
    f"it must be one or several of {', '.join(GROUPS)} and {LABEL}NAME, with commas, at most {_MAX_GROUPS}",
)


def choice(name: str, about: str, words: tuple[str, ...]) -> Parameter:
    """A parameter with a fixed set of words; the first is the default."""
    schema = {"enum": list(words), "default": words[0]}
    return Parameter(name, about, like("|".join(words), f"it must be one of {', '.join(words)}", schema))


def _day_or_time(name: str, text: str) -> int | date:
    """Milliseconds since 1970, from RFC 3339 or from such milliseconds; or a day, which begins at another
    moment in each time zone. Raises a Problem."""
    check(name, text, _WHEN)
    if re.fullmatch(_DAY, text, re.ASCII):
        return _day(name, text)
    if re.fullmatch(_DAY_WITHOUT_HYPHENS, text, re.ASCII):
        day = f"{text[:4]}-{text[4:6]}-{text[6:]}"
        raise bad(name, f"a day is written as {day}: {text} milliseconds since 1970 are on 1970-01-01")
    at_ms = int(text) if text.isdigit() else _rfc3339_ms(name, text)
    if not 0 <= at_ms <= FOREVER_MS:
        raise bad(name, "it must lie between the years 1970 and 9999")
    return at_ms


def start_ms(at: int | date | None, zone: str) -> int | None:
    """The moment of such a parameter in milliseconds since 1970: a day begins as `period_at` says; the
    first one of 1970 does not begin before it."""
    if not isinstance(at, date):
        return at
    return max(0, day_begins_ms(at, zone))


def _read_month(name: str, text: str) -> date:
    check(name, text, _MONTHS)
    return _day(name, f"{text}-01")


def _read_ranges(name: str, text: str) -> tuple[tuple[int | date, int | date | None], ...]:
    """The bounds of each range; a month has a first day alone."""
    ranges = text.split(",")
    if len(ranges) > MAX_BESIDE:
        raise bad(name, f"it must be at most {MAX_BESIDE} time ranges, with commas")
    return tuple(_read_range(name, each) for each in ranges)


def _read_range(name: str, text: str) -> tuple[int | date, int | date | None]:
    start, between, end = text.partition("/")
    if not between:
        return _read_month(name, text), None
    return _day_or_time(name, start), _day_or_time(name, end)


def _day(name: str, text: str) -> date:
    try:
        found = date.fromisoformat(text)
    except ValueError as error:
        raise bad(name, "there is no such day") from error
    if not 1970 <= found.year <= _LAST_YEAR:
        raise bad(name, f"it must lie between the years 1970 and {_LAST_YEAR}")
    return found


def _rfc3339_ms(name: str, text: str) -> int:
    try:
        since = datetime.fromisoformat(text.upper()) - datetime(1970, 1, 1, tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise bad(name, "there is no such day or time") from error
    return since // timedelta(milliseconds=1)


def _read_groups(name: str, text: str) -> tuple[str, ...]:
    groups = tuple(text.split(","))
    if len(set(groups)) < len(groups):
        raise bad(name, sentence(_GROUPED))
    return groups


def _read_zone(name: str, text: str) -> str:
    try:
        zoneinfo.ZoneInfo(text)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise bad(name, "no such time zone; it must be a name such as Europe/Berlin") from error
    return text


def cursor(*values: str | int) -> str:
    """The end of a page, as the text of ``after``."""
    return base64.urlsafe_b64encode(orjson.dumps(values)).rstrip(b"=").decode()


def _read_cursor(name: str, text: str) -> tuple[str | int, ...]:
    try:
        values = orjson.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (ValueError, binascii.Error) as error:
        raise no_cursor(name) from error
    if not isinstance(values, list) or not all(_is_place(each) for each in values):
        raise no_cursor(name)
    return tuple(values)


def _is_place(value: object) -> bool:
    if isinstance(value, str):
        return "\0" not in value
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= FOREVER_MS


def shaped(after: tuple[str | int, ...] | None, *kinds: type) -> tuple[Any, ...] | None:
    """The place where a page begins, if it has this list's form. Raises a Problem."""
    if after is not None and tuple(type(each) for each in after) != kinds:
        raise no_cursor("after")
    return after


def no_cursor(name: str) -> Problem:
    """The Problem for a place that no page of this list returned."""
    return bad(name, _NO_PLACE)


_NAMESPACE = like(
    object_names.NAMESPACE, "it must be the name of a namespace; of a group, one of its namespaces"
)
_SUBJECT = like(object_names.SUBJECT, "it must be the name of a namespace, or _group.NAME")
_GROUP_NAME = like(object_names.NAMESPACE, "not a valid name of a group")
_IN_PATH: tuple[None, str, bool] = (None, "path", True)

POD = Parameter(
    "pod",
    "only the pod of this name, or with this generateName",
    like(r"[a-z0-9][-.a-z0-9]{0,252}", "not a valid name of a pod"),
)
OWNER = Parameter(
    "owner",
    "only pods of this controller, such as Deployment/web",
    like(object_names.OWNER, "it must be a kind and a name, such as Deployment/web"),
)
UID = Parameter("uid", "only the pod with this UID", like("[A-Za-z0-9._:-]{1,64}", "not a valid UID"))
KIND = Parameter(
    "kind",
    "only this kind of decision, such as refused, placed, waiting or evicted",
    like("[a-z][a-z-]{0,31}", "not a valid kind"),
)
REASON = Parameter("reason", "only this reason", like(object_names.KIND, "not a valid reason"))
POD_IN_PATH = Parameter(
    "pod", "the name of a pod", like(object_names.NAME, "not a valid name of a pod"), *_IN_PATH
)
KIND_IN_PATH = Parameter(
    "kind", "kind of a controller", like(object_names.KIND, "not a valid kind"), *_IN_PATH
)
NAME_IN_PATH = Parameter("name", "its name", like(object_names.NAME, "not a valid name"), *_IN_PATH)

NAMESPACE_IN_PATH = Parameter("namespace", "a namespace, or `_group.NAME`", _SUBJECT, *_IN_PATH)
NAMESPACE_ONLY_IN_PATH = Parameter("namespace", "a namespace", _NAMESPACE, *_IN_PATH)
MEMBERS_OF = Parameter("group", "only the namespaces that are in this group now, and the group", _GROUP_NAME)
GROUP_IN_PATH = Parameter("group", "a group of namespaces, without `_group.`", _GROUP_NAME, *_IN_PATH)
SUBJECT_AS_NAMESPACE = Parameter("namespace", "only this namespace, or `_group.NAME`", _SUBJECT)
NAMESPACE = Parameter("namespace", "only this namespace", _NAMESPACE)
SUBJECT_GIVEN = Parameter("subject", "only this namespace, or `_group.NAME`", _SUBJECT)
FROM = Parameter(
    "from",
    "from this moment on: RFC 3339, a day such as 2026-11-01 in `timeZone`, or milliseconds since 1970",
    _WHEN,
    _day_or_time,
)
TO = Parameter(
    "to",
    "before this moment: RFC 3339, the beginning of a day such as 2026-12-01 in `timeZone`, or milliseconds"
    " since 1970",
    _WHEN,
    _day_or_time,
)
MONTH = Parameter(
    "month",
    "this month of `timeZone`, such as 2026-10, in place of `from` and `to`",
    _MONTHS,
    _read_month,
)
MONTH_IN_PATH = Parameter(
    "month", "a month of `timeZone`, such as 2026-10", _MONTHS, _read_month, "path", True
)
BESIDE = Parameter(
    "beside",
    f"further time ranges, whose rows follow: months such as 2026-10, or FROM/TO, with commas, at most"
    f" {MAX_BESIDE}; `limit` then gives the first rows of each, without `next`",
    # each range has its own sentence
    Meta(extra_json_schema={"pattern": f"^{_RANGE}(,{_RANGE}){{0,{MAX_BESIDE - 1}}}$"}),
    _read_ranges,
)
NODE = Parameter("node", "only this node", like(object_names.NAME, "not a valid node name"))
NODE_IN_PATH = Parameter(
    "node", "the name of a node", like(object_names.NAME, "not a valid node name"), *_IN_PATH
)
STATE = choice(
    "state",
    "`held`: the pod holds its cards now; `ended`: it does not, and awaits its settlement; `open`: both;"
    " `settled`: fully posted",
    ("all", "open", "held", "ended", "settled"),
)
GROUP = Parameter(
    "group",
    f"what to group by: {', '.join(GROUPS)} or {LABEL}NAME, several with commas (default: namespace)",
    _GROUPED,
    _read_groups,
)
BY = choice("by", "split by the calendar of `timeZone`", ("all", *TIME_STEPS))
ZONE = Parameter(
    "timeZone",
    "time zone of these steps (default: that of the budgets)",
    Meta(extra_json_schema={"minLength": 1, "maxLength": 64}, examples=["Europe/Berlin"]),
    _read_zone,
)
SORT = choice(
    "sort",
    "order of the rows; `-gpuHours`: the largest first; `limit` then gives the first ones, without `next`",
    ("columns", *ORDERS),
)
SELECTOR = Parameter(
    "labelSelector",
    "only nodes with these labels; those that tell single nodes apart are not known",
    like(rf"{_LABELLED}(,{_LABELLED}){{0,15}}", "it must be labels such as pool=h100, with commas"),
    lambda _, text: dict(pair.split("=") for pair in text.split(",")),
)
USE = choice("use", "with what was requested, measured and used", ("false", "true"))
FORMAT = choice("format", "`focus`: rows of FOCUS 1.2", ("json", "csv", "focus", "focus-csv"))
LIMIT = Parameter(
    "limit",
    f"rows in one answer, at most {MAX_ROWS}",
    like(
        rf"(?=.{{1,5}}\Z)0*[1-9][0-9]{{0,3}}|{MAX_ROWS}",
        f"it must be a whole number from 1 to {MAX_ROWS}",
        {"type": "integer", "minimum": 1, "maximum": MAX_ROWS},
    ),
    lambda _, text: int(text),
)
AFTER = Parameter(
    "after", "the `next` of the page before", like("[A-Za-z0-9_-]{1,4000}", _NO_PLACE), _read_cursor
)
IDEMPOTENCY_KEY = Parameter(
    "Idempotency-Key",
    "1 to 200 visible ASCII characters, new for each grant",
    like(r"[\x21-\x7e]{1,200}", "it must be 1 to 200 visible ASCII characters, new for each grant"),
    place="header",
    required=True,
)
