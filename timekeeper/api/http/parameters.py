"""The routes' parameters, each declared once with its parser."""

import base64
import binascii
import re
import zoneinfo
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

import orjson

from timekeeper.accounts.usage import GROUPS, LABEL, ORDERS, TIME_STEPS
from timekeeper.api.http.routes import Parameter
from timekeeper.core import object_names
from timekeeper.core.ledger.metering import FOREVER_MS
from timekeeper.runtime.http.problem_details import Problem, bad

NAME = "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
SUBJECT = rf"(_group\.)?{NAME}"
KEY = r"[\x21-\x7e]{1,200}"
MAX_ROWS = 10_000
MAX_BESIDE = 4

_DAY = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
_DAY_WITHOUT_HYPHENS = "(19|20)[0-9]{2}(0[1-9]|1[0-2])(0[1-9]|[12][0-9]|3[01])"
_CLOCK = r"[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?"
_TIME = rf"[0-9]{{1,15}}|{_DAY}[Tt]{_CLOCK}([Zz]|[+-][0-9]{{2}}:[0-9]{{2}})"
_RANGE = rf"([0-9]{{4}}-[0-9]{{2}}|({_TIME}|{_DAY})/({_TIME}|{_DAY}))"
_NODE = object_names.NAME
_GENERATED = r"[a-z0-9][-.a-z0-9]{0,252}"
_LABEL = r"([a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-._A-Za-z0-9]{0,61}[A-Za-z0-9])?"
_GROUP = rf"({'|'.join(GROUPS)}|{LABEL}{_LABEL})"
_MAX_GROUPS = 8
_LAST_YEAR = 9997
_CURSOR = r"[A-Za-z0-9_-]{1,4000}"

Json = Mapping[str, Any]


def text_like(pattern: str, problem: str) -> Callable[[str, str], str]:
    """A parser of texts that match a pattern as a whole."""
    compiled = re.compile(pattern, re.ASCII)

    def read(name: str, text: str) -> str:
        if not compiled.fullmatch(text):
            raise bad(name, problem)
        return text

    return read


def like(pattern: str, **more: Any) -> Json:
    """The JSON Schema of such texts."""
    return {"type": "string", "pattern": f"^(?:{pattern})$", **more}


def choice(name: str, about: str, words: tuple[str, ...]) -> Parameter:
    """A parameter with a fixed set of words; the first is the default."""
    read = text_like("|".join(words), f"it must be one of {', '.join(words)}")
    return Parameter(name, about, {"type": "string", "enum": list(words), "default": words[0]}, read)


def read_day_or_time(name: str, text: str) -> int | date:
    """Milliseconds since 1970, from RFC 3339 or from such milliseconds; or a day, which begins at another
    moment in each time zone. Raises a Problem."""
    if re.fullmatch(_DAY, text, re.ASCII):
        return _day(name, text)
    if not re.fullmatch(_TIME, text, re.ASCII):
        raise bad(
            name,
            "it must be a day such as 2026-11-01, a time such as 2026-11-01T00:00:00Z, with its zone,"
            " or milliseconds since 1970",
        )
    if re.fullmatch(_DAY_WITHOUT_HYPHENS, text, re.ASCII):
        day = f"{text[:4]}-{text[4:6]}-{text[6:]}"
        raise bad(name, f"a day is written as {day}: {text} milliseconds since 1970 are on 1970-01-01")
    at_ms = int(text) if text.isdigit() else _rfc3339_ms(name, text)
    if not 0 <= at_ms <= FOREVER_MS:
        raise bad(name, "it must lie between the years 1970 and 9999")
    return at_ms


def start_ms(at: int | date | None, zone: str) -> int | None:
    """The moment of such a parameter in milliseconds since 1970: a day begins at midnight in the zone; the
    first one of 1970 does not begin before it."""
    if not isinstance(at, date):
        return at
    midnight = datetime(at.year, at.month, at.day, tzinfo=zoneinfo.ZoneInfo(zone))
    return max(0, int(midnight.timestamp()) * 1000)


def _read_month(name: str, text: str) -> date:
    if not re.fullmatch("[0-9]{4}-(0[1-9]|1[0-2])", text, re.ASCII):
        raise bad(name, "it must be a month such as 2026-10")
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
    return read_day_or_time(name, start), read_day_or_time(name, end)


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


def _read_limit(name: str, text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text, re.ASCII) or not 1 <= int(text) <= MAX_ROWS:
        raise bad(name, f"it must be a whole number from 1 to {MAX_ROWS}")
    return int(text)


def _read_groups(name: str, text: str) -> tuple[str, ...]:
    groups = tuple(text.split(","))
    wrong = [each for each in groups if not re.fullmatch(_GROUP, each, re.ASCII)]
    if wrong or len(groups) > _MAX_GROUPS or len(set(groups)) < len(groups):
        allowed = f"{', '.join(GROUPS)} and {LABEL}NAME"
        raise bad(name, f"it must be one or several of {allowed}, with commas, at most {_MAX_GROUPS}")
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
        if not re.fullmatch(_CURSOR, text, re.ASCII):
            raise ValueError(text)
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
    return bad(name, "it must be the `next` of an answer to the same request")


NAMESPACE_RULE = text_like(NAME, "not a valid namespace name")
SUBJECT_RULE = text_like(SUBJECT, "it must be the name of a namespace, or _group.NAME")

_POD_NAME = text_like(_NODE, "not a valid name of a pod")
_KIND = object_names.KIND
_UID = "[A-Za-z0-9._:-]{1,64}"
_DECISION_KIND = "[a-z][a-z-]{0,31}"
POD = Parameter(
    "pod",
    "only the pod of this name, or with this generateName",
    like(_GENERATED),
    text_like(_GENERATED, "not a valid name of a pod"),
)
OWNER = Parameter(
    "owner",
    "only pods of this controller, such as Deployment/web",
    like(object_names.OWNER),
    text_like(object_names.OWNER, "it must be a kind and a name, such as Deployment/web"),
)
UID = Parameter("uid", "only the pod with this UID", like(_UID), text_like(_UID, "not a valid UID"))
KIND = Parameter(
    "kind",
    "only this kind of decision, such as refused, placed, waiting or evicted",
    like(_DECISION_KIND),
    text_like(_DECISION_KIND, "not a valid kind"),
)
REASON = Parameter("reason", "only this reason", like(_KIND), text_like(_KIND, "not a valid reason"))
POD_IN_PATH = Parameter("pod", "the name of a pod", like(_NODE), _POD_NAME, "path", True)
KIND_IN_PATH = Parameter(
    "kind", "kind of a controller", like(_KIND), text_like(_KIND, "not a valid kind"), "path", True
)
NAME_IN_PATH = Parameter("name", "its name", like(_NODE), text_like(_NODE, "not a valid name"), "path", True)

NAMESPACE_IN_PATH = Parameter(
    "namespace", "a namespace, or `_group.NAME`", like(SUBJECT), SUBJECT_RULE, "path", True
)
NAMESPACE_ONLY_IN_PATH = Parameter("namespace", "a namespace", like(NAME), NAMESPACE_RULE, "path", True)
MEMBERS_OF = Parameter(
    "group",
    "only the namespaces that are in this group now, and the group",
    like(NAME),
    text_like(NAME, "not a valid name of a group"),
)
GROUP_IN_PATH = Parameter(
    "group",
    "a group of namespaces, without `_group.`",
    like(NAME),
    text_like(NAME, "not a valid name of a group"),
    "path",
    True,
)
SUBJECT_AS_NAMESPACE = Parameter(
    "namespace", "only this namespace, or `_group.NAME`", like(SUBJECT), SUBJECT_RULE
)
NAMESPACE = Parameter("namespace", "only this namespace", like(NAME), NAMESPACE_RULE)
SUBJECT_GIVEN = Parameter("subject", "only this namespace, or `_group.NAME`", like(SUBJECT), SUBJECT_RULE)
FROM = Parameter(
    "from",
    "from this moment on: RFC 3339, a day such as 2026-11-01 in `timeZone`, or milliseconds since 1970",
    like(rf"{_TIME}|{_DAY}"),
    read_day_or_time,
)
TO = Parameter(
    "to",
    "before this moment: RFC 3339, the beginning of a day such as 2026-12-01 in `timeZone`, or milliseconds"
    " since 1970",
    like(rf"{_TIME}|{_DAY}"),
    read_day_or_time,
)
MONTH = Parameter(
    "month",
    "this month of `timeZone`, such as 2026-10, in place of `from` and `to`",
    like("[0-9]{4}-[0-9]{2}"),
    _read_month,
)
BESIDE = Parameter(
    "beside",
    f"further time ranges, whose rows follow: months such as 2026-10, or FROM/TO, with commas, at most"
    f" {MAX_BESIDE}; `limit` then gives the first rows of each, without `next`",
    like(rf"{_RANGE}(,{_RANGE}){{0,{MAX_BESIDE - 1}}}"),
    _read_ranges,
)
NODE = Parameter("node", "only this node", like(_NODE), text_like(_NODE, "not a valid node name"))
STATE = choice("state", "`open`: not settled yet; `settled`: fully posted", ("all", "open", "settled"))
GROUP = Parameter(
    "group",
    f"what to group by: {', '.join(GROUPS)} or {LABEL}NAME, several with commas (default: namespace)",
    like(rf"{_GROUP}(,{_GROUP}){{0,{_MAX_GROUPS - 1}}}"),
    _read_groups,
)
BY = choice("by", "split by the calendar of `timeZone`", ("all", *TIME_STEPS))
ZONE = Parameter(
    "timeZone",
    "time zone of these steps (default: that of the budgets)",
    {"type": "string", "minLength": 1, "maxLength": 64, "examples": ["Europe/Berlin"]},
    _read_zone,
)
SORT = choice(
    "sort",
    "order of the rows; `-gpuHours`, `-stranded`: the largest first; `limit` then gives the first ones,"
    " without `next`",
    ("columns", *ORDERS),
)
USE = choice("use", "with what was requested, measured and used", ("false", "true"))
STRANDED = choice(
    "stranded",
    "with the cards that each namespace stranded; `group` must be `namespace` or `group`",
    ("false", "true"),
)
FORMAT = choice("format", "`focus`: rows of FOCUS 1.2", ("json", "csv", "focus", "focus-csv"))
LIMIT = Parameter(
    "limit",
    f"rows in one answer, at most {MAX_ROWS}",
    {"type": "integer", "minimum": 1, "maximum": MAX_ROWS},
    _read_limit,
)
AFTER = Parameter("after", "the `next` of the page before", like(_CURSOR), _read_cursor)
IDEMPOTENCY_KEY = Parameter(
    "Idempotency-Key",
    "1 to 200 visible ASCII characters, new for each grant",
    like(KEY),
    text_like(KEY, "it must be 1 to 200 visible ASCII characters, new for each grant"),
    "header",
    True,
)
