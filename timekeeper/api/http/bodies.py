"""Bodies, read as their types declare them (`timekeeper.core.forms`). What fits becomes a value of the
type. Of the first value that does not, the caller learns the field, and what is allowed."""

import json
from collections import Counter
from collections.abc import Callable, Iterable
from decimal import Decimal, InvalidOperation
from functools import cached_property, partial
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NotRequired,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import orjson

from timekeeper.core.forms import Form
from timekeeper.runtime.http.problem_details import Problem, bad, together

T = TypeVar("T")

# A JSON value as the type. Fields that the type does not have are left out, and a null that may be absent is
# null. Raises a Problem; its field is the place in the value.
Read = Callable[[Any], Any]

_PLAIN: dict[Any, tuple[tuple[type, ...], str]] = {
    str: ((str,), "it must be a text"),
    int: ((int,), "it must be a whole number"),
    float: ((int, float, Decimal), "it must be a number"),
    bool: ((bool,), "it must be true or false"),
    NoneType: ((NoneType,), "it must be null"),
}
_OBJECT = "it must be an object"
_MAX_UNKNOWN = 60  # characters of an unknown field's name that are repeated


class Body(Generic[T]):
    """A route's body: a JSON object of this type, in which no field of the type may be given twice."""

    def __init__(self, kind: type[T], *forms: Form, load: Callable[[bytes], Any] = orjson.loads) -> None:
        """``forms``: of the object as a whole; ``load`` raises ValueError for what is not JSON."""
        self.declared: Any = Annotated[(kind, *forms)] if forms else kind
        self._load = load

    @cached_property
    def _read(self) -> Read:
        return reader(self.declared)

    @cached_property
    def _needles(self) -> tuple[tuple[str, bytes], ...]:
        return tuple((name, f'"{name}"'.encode()) for name in get_type_hints(_parted(self.declared)[0]))

    def read(self, body: bytes) -> T:
        """The body's value. Raises a Problem that names the first wrong field, and the others."""
        try:
            raw = self._load(body)
        except (ValueError, RecursionError) as error:
            raise bad("", "the body is not JSON") from error
        if not isinstance(raw, dict):
            raise bad("", "the body must be an object")
        twice = [name for name, needle in self._needles if body.count(needle) > 1]
        if twice:
            _check_given_once(body, twice)
        return cast(T, self._read(raw))


def _check_given_once(body: bytes, names: Iterable[str]) -> None:
    """Raises a Problem for one of these fields that the body itself has twice. A name or a text further in
    may equal a field's name."""
    try:
        pairs = json.loads(body, object_pairs_hook=list, parse_int=str, parse_float=str)
    except RecursionError as error:
        raise bad("", "the body is not JSON") from error
    given = Counter(name for name, _ in pairs)
    for name in names:
        if given[name] > 1:
            raise bad(name, "it must be given once")


def reader(kind: Any) -> Read:
    """What reads a JSON value of this type."""
    plain, forms = _parted(kind)
    origin, arguments = get_origin(plain), get_args(plain)
    if is_typeddict(plain):
        return _object(plain, forms)
    if origin is list:
        return _list(reader(arguments[0]), _scalar((list,), "it must be a list", forms))
    if origin is dict:
        return _dictionary(reader(arguments[1]), _scalar((dict,), _OBJECT, forms))
    if origin is Literal:
        return _literal(arguments, _sentence(forms))
    if origin in (Union, UnionType):
        return _union(arguments, forms)
    if plain is Any:
        return lambda value: value
    types, usual = _PLAIN[plain]
    return _scalar(types, usual, forms)


def _parted(kind: Any) -> tuple[Any, tuple[Form, ...]]:
    """The type itself, and its forms."""
    if get_origin(kind) is NotRequired:
        return _parted(get_args(kind)[0])
    if get_origin(kind) is not Annotated:
        return kind, ()
    plain, *forms = get_args(kind)
    return plain, tuple(forms)


def _sentence(forms: tuple[Form, ...]) -> str:
    return next((each.sentence for each in forms if each.sentence), "")


def _scalar(types: tuple[type, ...], usual: str, forms: tuple[Form, ...]) -> Read:
    """``usual``: what is said of a value of another type if no form has a sentence."""
    wrong = _sentence(forms) or usual
    checks = tuple((each.fits, each.sentence) for each in forms if each.fits)

    def refused(value: Any) -> Problem:
        if type(value) not in types:
            return bad("", wrong)
        return bad("", next(allowed for fits, allowed in checks if not fits(value)))

    def fits_all(value: Any) -> object:
        return all(fits(value) for fits, _ in checks)

    fits = checks[0][0] if len(checks) == 1 else fits_all

    def read(value: Any) -> Any:
        if type(value) in types and (value is None or fits(value)):
            return value
        raise refused(value)

    return read


def _literal(words: tuple[Any, ...], sentence: str) -> Read:
    allowed = sentence or f"it must be {' or '.join(map(str, words))}"

    def read(value: Any) -> Any:
        if value not in words:
            raise bad("", allowed)
        return value

    return read


def _union(kinds: tuple[Any, ...], forms: tuple[Form, ...]) -> Read:
    """Of plain types, or of one type and null."""
    plain = [each for each in kinds if each in _PLAIN]
    if len(plain) == len(kinds):
        types = tuple(one for each in plain for one in _PLAIN[each][0])
        return _scalar(types, _PLAIN[plain[0]][1], forms)
    (kind,) = (each for each in kinds if each is not NoneType)
    inner = reader(kind)
    return lambda value: None if value is None else inner(value)


def _list(element: Read, whole: Read) -> Read:
    def read(value: Any) -> list[Any]:
        whole(value)
        try:
            return [element(each) for each in value]
        except Problem as problem:
            at = f"[{_first_refused(element, value)}]"
            raise problem.within(partial(_place, at)) from problem

    return read


def _first_refused(element: Read, values: list[Any]) -> int:
    for at, each in enumerate(values):
        try:
            element(each)
        except Problem:
            return at
    raise AssertionError("none is refused")


def _dictionary(member: Read, whole: Read) -> Read:
    def read(value: Any) -> dict[str, Any]:
        whole(value)
        found, name = {}, ""
        try:
            for name, each in value.items():
                found[name] = member(each)
        except Problem as problem:
            raise problem.within(partial(_place, name)) from problem
        return found

    return read


def _object(kind: Any, forms: tuple[Form, ...]) -> Read:
    hints = get_type_hints(kind, include_extras=True)
    fields = tuple((name, reader(hint), name in kind.__optional_keys__) for name, hint in hints.items())
    sentence = _sentence(forms) or _OBJECT
    is_closed = any(each.schema.get("additionalProperties") is False for each in forms)

    def read(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise bad("", sentence)
        if is_closed and value.keys() - hints.keys():
            unknown = min(value.keys() - hints.keys())
            raise bad(unknown[:_MAX_UNKNOWN], f"no such field; allowed: {', '.join(hints)}")
        found, wrong = {}, []
        for name, field, may_lack in fields:
            if may_lack and name not in value:
                continue
            try:
                found[name] = field(value.get(name))
            except Problem as problem:
                wrong.append(problem.within(partial(_place, name)))
        if wrong:
            raise together(wrong)
        return found

    return read


def _place(name: str, within: str) -> str:
    """``name``, and the place within it."""
    return f"{name}.{within}" if within and within[0] != "[" else name + within


def exact(body: bytes) -> Any:
    """The JSON value of a body whose numbers keep their decimal text: 0.1 is a tenth, not the nearest float.
    Raises a Problem for a field that an object has twice."""
    return json.loads(body, parse_float=_decimal, parse_constant=_no_constant, object_pairs_hook=_each_once)


def _decimal(text: str) -> Decimal:
    """A number that is not an integer. If no Decimal can hold its exponent it becomes infinite, which every
    field rejects by its own name."""
    try:
        return Decimal(text)
    except InvalidOperation:
        return Decimal("Infinity")


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise bad("", "a field appears twice in the body")
    return fields


def _no_constant(text: str) -> object:
    raise bad("", f"{text} is not JSON")
