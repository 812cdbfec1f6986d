"""Parses manifests as kubectl does: the documents of a YAML or JSON text, with the lines of their fields.

Values are built from the parser's events and bounded in length, depth and number (an alias counts as often
as it is used), so no text can exhaust memory. Plain scalars are resolved as kubectl's library does
(sigs.k8s.io/yaml): ``yes`` is true, ``1e3`` is 1000, ``0o17`` is 15, a date is text.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import yaml
from yaml.reader import Reader

_NULLS = frozenset(("", "~", "null", "Null", "NULL"))
_TRUE = frozenset(("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"))
_FALSE = frozenset(("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"))
_INTEGER = re.compile(r"([-+]?)(?:0[xX]([0-9a-fA-F]+)|0[bB]([01]+)|0[oO]?([0-7]+)|([0-9]+))", re.ASCII)
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", re.ASCII)
NO_NUMBER = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")

MAX_CHARACTERS = 16 * 1024 * 1024
MAX_VALUES = 1_000_000
DEEPEST = 100

Path = tuple[str | int, ...]

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_CORE = "tag:yaml.org,2002:"
_MERGE = "<<"


def plain(text: str) -> Any:
    """A plain scalar's value, as kubectl's library resolves it."""
    if text in _NULLS:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    digits = text.replace("_", "") if text[:1] in "-+.0123456789" else ""
    integer = _INTEGER.fullmatch(digits)
    if integer and len(digits) <= 64:
        whole = _integer(*integer.groups())
        if -(2**63) <= whole < 2**64:
            return whole
    if _FLOAT.fullmatch(digits):
        number = float(digits)
        if not math.isinf(number):
            return int(number) if number.is_integer() and abs(number) < 1e21 else number
    return text


def _integer(sign: str, sixteen: str, two: str, eight: str, ten: str) -> int:
    for digits, base in ((sixteen, 16), (two, 2), (eight, 8), (ten, 10)):
        if digits is not None:
            return int(digits, base) * (-1 if sign == "-" else 1)
    raise AssertionError("one of them has matched")


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


@dataclass(slots=True)
class _Collection:
    """A mapping or sequence that is being parsed."""

    value: Any
    path: Path
    line: int
    anchor: str | None
    key: str | None = None
    key_line: int = 0
    awaits_key: bool = True
    merged: list[Any] = field(default_factory=list)
    before: int = 0


class _Reading:
    """The state of parsing one YAML stream. ``counted``: values so far, including those of aliases."""

    def __init__(self) -> None:
        self.counted = 0
        self.begin(1)

    def begin(self, line: int) -> None:
        """Starts a document."""
        self.line = line
        self.value: Any = None
        self.problem: ManifestProblem | None = None
        self.lines: dict[Path, int] = {}
        self.open: list[_Collection] = []
        self.anchors: dict[str, tuple[Any, int]] = {}
        self.has_content = False

    def document(self) -> ManifestDocument:
        """The document that has ended."""
        return ManifestDocument(self.line, self.value, self.lines, self.problem)

    def wrong(self, line: int, sentence: str) -> None:
        """Records the first problem of this document."""
        if self.problem is None:
            self.problem = ManifestProblem(line, sentence)

    def take(self, event: Any) -> None:
        """Takes one event of the document's content."""
        line = event.start_mark.line + 1
        if not self.has_content:
            self.line, self.has_content = line, True
        self._count(1, line)
        if isinstance(event, yaml.CollectionEndEvent):
            self._end()
        elif isinstance(event, yaml.CollectionStartEvent):
            self._start(event, line)
        elif isinstance(event, yaml.AliasEvent):
            self._alias(str(event.anchor), line)
        else:
            self._scalar(event, line)

    def _count(self, values: int, line: int) -> None:
        self.counted += values
        if self.counted > MAX_VALUES:
            raise _UnreadableError(
                line, f"too large: the limit is {MAX_VALUES} values, with those of aliases"
            )

    def _start(self, event: Any, line: int) -> None:
        if len(self.open) >= DEEPEST:
            raise _UnreadableError(line, f"nested too deeply: the limit is {DEEPEST} levels")
        self._wants_value(line, "a key must be a single value")
        if event.tag not in (None, "!", f"{_CORE}map", f"{_CORE}seq"):
            self.wrong(line, f"the tag {_shown(event.tag)} is not supported")
        value: Any = {} if isinstance(event, yaml.MappingStartEvent) else []
        self.open.append(_Collection(value, self._path(), line, event.anchor, before=self.counted))

    def _end(self) -> None:
        ended = self.open.pop()
        for (
            each
        ) in ended.merged:  # the first merged mapping takes precedence, and the mapping's own keys over all
            for key, value in each.items():
                ended.value.setdefault(key, value)
        if ended.anchor:
            self.anchors[ended.anchor] = ended.value, self.counted - ended.before
        self._put(ended.value, ended.line)

    def _alias(self, anchor: str, line: int) -> None:
        if anchor not in self.anchors:
            inside = any(each.anchor == anchor for each in self.open)
            self.wrong(line, f"the alias *{anchor} " + ("contains itself" if inside else "has no anchor"))
            self.anchors[anchor] = None, 0
        self._wants_value(line, "a key must be a single value")
        value, size = self.anchors[anchor]
        self._count(size, line)
        self._put(value, line)

    def _scalar(self, event: Any, line: int) -> None:
        value = self._resolved(event, line)
        if event.anchor:
            self.anchors[event.anchor] = value, 0
        top = self.open[-1] if self.open else None
        if top is not None and isinstance(top.value, dict) and top.awaits_key:
            is_merge = event.value == _MERGE and event.implicit[0]
            self._key(top, _MERGE if is_merge else _as_key(value), line, is_merge)
            return
        self._put(value, line + 1 if event.style in ("|", ">") else line)

    def _key(self, top: _Collection, key: str, line: int, is_merge: bool) -> None:
        if key in top.value and not is_merge:
            self.wrong(line, f"the key {_shown(key)} is duplicate")
        top.key, top.key_line, top.awaits_key = key, line, False

    def _wants_value(self, line: int, otherwise: str) -> None:
        """Refuses a collection or alias in the place of a key."""
        top = self.open[-1] if self.open else None
        if top is not None and isinstance(top.value, dict) and top.awaits_key:
            raise _UnreadableError(line, otherwise)

    def _path(self) -> Path:
        """The path of the next value."""
        if not self.open:
            return ()
        top = self.open[-1]
        return (*top.path, len(top.value) if isinstance(top.value, list) else top.key or "")

    def _put(self, value: Any, line: int) -> None:
        path = self._path()
        if not self.open:
            self.value = value
            return
        top = self.open[-1]
        if isinstance(top.value, list):
            top.value.append(value)
            self.lines[path] = line
            return
        top.awaits_key = True
        if top.key == _MERGE:
            self._merge(top, value)
        else:
            top.value[top.key] = value
            self.lines[path] = line if isinstance(value, str) else top.key_line

    def _merge(self, top: _Collection, value: Any) -> None:
        merged = value if isinstance(value, list) else [value]
        if not all(isinstance(each, dict) for each in merged):
            self.wrong(top.key_line, "<< requires mappings")
            return
        top.merged += merged

    def _resolved(self, event: Any, line: int) -> Any:
        tag = event.tag
        if tag in ("!", f"{_CORE}str") or (tag is None and not event.implicit[0]):
            return event.value
        if tag is not None and tag not in {f"{_CORE}{name}" for name in ("int", "float", "bool", "null")}:
            self.wrong(line, f"the tag {_shown(tag)} is not supported")
            return event.value
        if NO_NUMBER.fullmatch(event.value):
            self.wrong(line, f"{event.value} is not a number in Kubernetes")
        return plain(event.value)


def _of_yaml(text: str) -> Iterator[ManifestDocument]:
    reading = _Reading()
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            if isinstance(event, yaml.DocumentStartEvent):
                reading.begin(event.start_mark.line + 1 if event.start_mark else 1)
            elif isinstance(event, yaml.DocumentEndEvent):
                yield reading.document()
            elif isinstance(event, yaml.NodeEvent | yaml.CollectionEndEvent):
                reading.take(event)
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
