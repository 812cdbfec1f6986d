"""Parses manifests as kubectl does: the documents of a YAML or JSON text, with the lines of their fields.

Values are built from the parser's events and bounded in length, depth and number (an alias counts as often
as it is used), so no text can exhaust memory or the stack (docs/decisions/0090). Plain scalars are resolved
as kubectl's library does (sigs.k8s.io/yaml): ``yes`` is true, ``1e3`` is 1000, ``0o17`` is 15, and a date is
text.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import yaml
from yaml.reader import Reader

_NULLS = frozenset(("", "~", "null", "Null", "NULL"))
_TRUE = frozenset(("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"))
_FALSE = frozenset(("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"))
_INTEGERS = tuple(
    (base, re.compile(rf"[-+]?{digits}", re.ASCII))
    for base, digits in ((16, "0[xX][0-9a-fA-F]+"), (2, "0[bB][01]+"), (8, "0[oO]?[0-7]+"), (10, "[0-9]+"))
)
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", re.ASCII)
_NO_NUMBER = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")

MAX_CHARACTERS = 16 * 1024 * 1024
MAX_VALUES = 1_000_000
DEEPEST = 100

Path = tuple[str | int, ...]

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_CORE = "tag:yaml.org,2002:"


def plain(text: str) -> Any:
    """A plain scalar's value, as kubectl's library resolves it."""
    if text in _NULLS:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    digits = text.replace("_", "") if text[:1] in "-+.0123456789" else ""
    base = next((base for base, form in _INTEGERS if form.fullmatch(digits)), None)
    if base and len(digits) <= 64:
        whole = int(digits, base)
        if -(2**63) <= whole < 2**64:
            return whole
    if _FLOAT.fullmatch(digits):
        number = float(digits)
        if not math.isinf(number):
            return int(number) if number.is_integer() and abs(number) < 1e21 else number
    return text


@dataclass(frozen=True, slots=True)
class ManifestProblem:
    """Why a text, or one document of it, cannot be parsed."""

    line: int
    sentence: str


@dataclass(frozen=True, slots=True)
class ManifestDocument:
    """One document of a text. Lines count from 1."""

    line: int  # where it begins
    value: Any
    lines: Mapping[Path, int]  # of each field; for a block of text its first line
    problem: ManifestProblem | None = None  # why the value cannot be used


class _UnreadableError(ValueError):
    def __init__(self, line: int, sentence: str) -> None:
        super().__init__(sentence)
        self.problem = ManifestProblem(line, sentence)


def read(text: str) -> tuple[tuple[ManifestDocument, ...], ManifestProblem | None]:
    """The documents of a text, and why the rest could not be parsed. Never raises. Empty documents are left
    out."""
    documents: list[ManifestDocument] = []
    try:
        _check(text)
        for document in _of_json(text) if text.lstrip()[:1] == "{" else _of_yaml(text):
            if document.value is not None or document.problem:
                documents.append(document)  # noqa: PERF401 (what was read before an error stays)
    except _UnreadableError as error:
        last = len(text.splitlines()) or 1  # the parser counts the end as a line of its own
        return tuple(documents), replace(error.problem, line=min(error.problem.line, last))
    return tuple(documents), None


def decoded(raw: bytes) -> str:
    """The text of a file. Raises UnicodeDecodeError where it is not UTF-8."""
    return raw.decode("utf-8-sig")


def line_of(document: ManifestDocument, path: str) -> int:
    """The line of the field at a violation's path, or of the nearest existing field around it."""
    steps: list[str | int] = []
    for name, index in re.findall(r"([^.\[\]]+(?:\.[^.\[\]]+)*?)(?=[.\[]|$)|\[([^\]]*)\]", path):
        steps += [int(index)] if index.isascii() and index.isdecimal() else [index or name]
    for length in range(len(steps), 0, -1):
        line = document.lines.get(tuple(steps[:length]))
        if line is not None:
            return line
    return document.line


def _check(text: str) -> None:
    if len(text) > MAX_CHARACTERS:
        raise _UnreadableError(1, f"too long: the limit is {MAX_CHARACTERS} characters")
    strange = Reader.NON_PRINTABLE.search(text)
    if strange:
        line = text.count("\n", 0, strange.start()) + 1
        raise _UnreadableError(
            line, f"the character U+{ord(strange.group()):04X} is not allowed in a manifest"
        )


def _of_json(text: str) -> Iterator[ManifestDocument]:
    """The JSON objects of a text, one after the other; otherwise the text is YAML."""
    try:
        documents = list(_objects(text))
    except (json.JSONDecodeError, RecursionError):
        yield from _of_yaml(text)
        return
    yield from documents


def _objects(text: str) -> Iterator[ManifestDocument]:
    decoder = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_no_constant)
    place = 0
    while match := re.compile(r"\S").search(text, place):
        line = text.count("\n", 0, match.start()) + 1
        try:
            value, place = decoder.raw_decode(text, match.start())
        except _UnreadableError as error:
            raise _UnreadableError(line, error.problem.sentence) from error
        _bounded(value, line)
        yield ManifestDocument(line, value, {})


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _UnreadableError(1, f"the key {_shown(twice)} is duplicate")
    return found


def _no_constant(name: str) -> Any:
    raise _UnreadableError(1, f"{name} is not a JSON number")


def _bounded(value: Any, line: int) -> None:
    """Refuses a value that is nested too deeply. No recursion, because the value may be very deep."""
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > DEEPEST:
            raise _UnreadableError(line, f"nested too deeply: the limit is {DEEPEST} levels")
        level = [
            each
            for one in level
            if isinstance(one, dict | list)
            for each in (one.values() if isinstance(one, dict) else one)
        ]


class _Stream:
    """The documents of one YAML stream, each by recursive descent over its events."""

    def __init__(self, text: str) -> None:
        self._events: Iterator[Any] = yaml.parse(text, Loader=_LOADER)
        self._counted = 0  # values so far, with those of aliases

    def documents(self) -> Iterator[ManifestDocument]:
        """Each as soon as its end is parsed. Raises YAMLError or _UnreadableError."""
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                # path -> line; anchor -> value and its number of values, None while it is open
                self._lines: dict[Path, int] = {}
                self._anchors: dict[str, tuple[Any, int] | None] = {}
                self._problem: ManifestProblem | None = None
                root = next(self._events)
                value, _ = self._value(root, ())
                next(self._events)
                yield ManifestDocument(_line(root), value, self._lines, self._problem)

    def _wrong(self, line: int, sentence: str) -> None:
        """Records the first problem of this document."""
        if self._problem is None:
            self._problem = ManifestProblem(line, sentence)

    def _count(self, values: int, line: int) -> None:
        self._counted += values
        if self._counted > MAX_VALUES:
            raise _UnreadableError(
                line, f"too large: the limit is {MAX_VALUES} values, with those of aliases"
            )

    def _value(self, event: Any, path: Path) -> tuple[Any, int]:
        """The value that begins with this event, and its line."""
        line = _line(event)
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event), line + 1 if event.style in ("|", ">") else line
        self._count(1, line)
        if isinstance(event, yaml.AliasEvent):
            return self._aliased(event.anchor, line), line
        if len(path) >= DEEPEST:
            raise _UnreadableError(line, f"nested too deeply: the limit is {DEEPEST} levels")
        if event.tag not in (None, "!", f"{_CORE}map", f"{_CORE}seq"):
            self._wrong(line, f"the tag {_shown(event.tag)} is not supported")
        before = self._counted
        if event.anchor:
            self._anchors[event.anchor] = None
        value = self._mapping(path) if isinstance(event, yaml.MappingStartEvent) else self._sequence(path)
        if event.anchor:
            self._anchors[event.anchor] = value, self._counted - before
        return value, line

    def _aliased(self, anchor: Any, line: int) -> Any:
        known = self._anchors.get(anchor)
        if known is None:
            what = "contains itself" if anchor in self._anchors else "has no anchor"
            self._wrong(line, f"the alias *{anchor} {what}")
            return None
        value, size = known
        self._count(size, line)
        return value

    def _sequence(self, path: Path) -> list[Any]:
        values: list[Any] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            place = (*path, len(values))
            value, self._lines[place] = self._value(event, place)
            values.append(value)
        return values

    def _mapping(self, path: Path) -> dict[str, Any]:
        values: dict[str, Any] = {}
        own: set[str] = set()
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key_line = _line(event)
            if not isinstance(event, yaml.ScalarEvent):
                raise _UnreadableError(key_line, "a key must be a single value")
            key, is_merge = _as_key(self._scalar(event)), event.value == "<<" and event.implicit[0]
            if key in own and not is_merge:
                self._wrong(key_line, f"the key {_shown(key)} is duplicate")
            value, line = self._value(next(self._events), (*path, key))
            if not is_merge:
                own.add(key)
                values[key] = value
                self._lines[(*path, key)] = line if isinstance(value, str) else key_line
                continue
            mappings = value if isinstance(value, list) else [value]
            if not all(isinstance(mapping, dict) for mapping in mappings):
                self._wrong(key_line, "<< requires mappings")
                continue
            for mapping in reversed(mappings):  # what stands later wins, but of a list the first mapping
                values |= mapping
        return values

    def _scalar(self, event: Any) -> Any:
        line = _line(event)
        self._count(1, line)
        value = self._resolved(event, line)
        if event.anchor:
            self._anchors[event.anchor] = value, 0
        return value

    def _resolved(self, event: Any, line: int) -> Any:
        tag = event.tag
        if tag in ("!", f"{_CORE}str") or (tag is None and not event.implicit[0]):
            return event.value
        if tag is not None and tag not in {f"{_CORE}{name}" for name in ("int", "float", "bool", "null")}:
            self._wrong(line, f"the tag {_shown(tag)} is not supported")
            return event.value
        if _NO_NUMBER.fullmatch(event.value):
            self._wrong(line, f"{event.value} is not a number in Kubernetes")
        return plain(event.value)


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _of_yaml(text: str) -> Iterator[ManifestDocument]:
    try:
        yield from _Stream(text).documents()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise _UnreadableError(
            mark.line + 1 if mark else 1, f"not YAML: {error.problem or error.context}"
        ) from error
    except yaml.YAMLError as error:
        raise _UnreadableError(1, f"not YAML: {str(error).splitlines()[0]}") from error


def _as_key(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _shown(text: object) -> str:
    whole = "".join(c if c.isprintable() else "?" for c in str(text))
    return whole if len(whole) <= 60 else f"{whole[:57]}..."
