"""What a value may be beside its type, as constraints of msgspec: ``Annotated[int, whole(100)]``. Each has a
sentence that says what is allowed, for the caller whose value is refused."""

import json
import re
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

_MAX_UNKNOWN = 60  # characters of an unknown field's name that are repeated
_USUAL: dict[Any, str] = {
    str: "it must be a text",
    int: "it must be a whole number",
    float: "it must be a number",
    bool: "it must be true or false",
    list: "it must be a list",
}


def allowed(says: str, schema: dict[str, Any] | None = None) -> Meta:
    """``schema``: more of the form, as JSON Schema."""
    return Meta(extra={"allowed": says}, extra_json_schema=schema)


def whole(most: int, says: str = "", least: int = 0) -> Meta:
    """A whole number from ``least`` to ``most``."""
    says = says or f"it must be a whole number from {least} to {most}"
    return Meta(ge=least, le=most, extra={"allowed": says})


def like(pattern: str, says: str, schema: dict[str, Any] | None = None) -> Meta:
    """A text that matches the pattern as a whole; its classes are of ASCII. ``schema``: the form as JSON
    Schema, where that says it better than the pattern."""
    schema = schema or {"pattern": f"^(?:{pattern})$"}
    return Meta(pattern=rf"(?a)\A(?:{pattern})\Z", extra={"allowed": says}, extra_json_schema=schema)


def documented(schemas: bytes) -> bytes:
    """The JSON of schemas by msgspec with patterns as every reader of JSON Schema takes them."""
    return schemas.replace(rb'"(?a)\\A(?:', b'"^(?:').replace(rb')\\Z"', b')$"')


def text(most: int, least: int = 0, says: str = "") -> Meta:
    """A text of ``least`` to ``most`` characters. That these are printable the Struct checks:
    `check_printable`."""
    says = says or f"it must be a printable text of {least} to {most} characters"
    return Meta(min_length=least or None, max_length=most, extra={"allowed": says})


def items(least: int, most: int, says: str = "") -> Meta:
    """A list of ``least`` to ``most`` items."""
    says = says or f"it must be a list of {least} to {most} objects"
    return Meta(min_length=least or None, max_length=most, extra={"allowed": says})


def fits(form: Meta, text: str) -> bool:
    """True of a text that has this form."""
    return form.pattern is None or re.search(form.pattern, text) is not None


def sentence(form: Meta) -> str:
    """What the form allows."""
    return str(form.extra["allowed"]) if form.extra else ""


def document_of(form: Meta) -> dict[str, Any]:
    """The form as JSON Schema."""
    return {**(form.extra_json_schema or {}), **({"examples": form.examples} if form.examples else {})}


class NotAllowedError(ValueError):
    """A field of a Struct may not have its value, where that depends on more than its form. Raised by
    ``__post_init__``. ``says``: what is allowed; "": what the field's form says."""

    def __init__(self, field: str, says: str = "") -> None:
        super().__init__(field)
        self.field, self.says = field, says


def check_printable(body: Struct, *fields: str) -> None:
    """Raises NotAllowedError for the first of these texts, or of a list's or an object's texts, that is not
    printable."""
    for field in fields:
        texts = getattr(body, field)
        if not "".join((texts,) if isinstance(texts, str) else texts).isprintable():
            raise NotAllowedError(field)


_MESSAGE = re.compile(r"(?s)(.*?)(?: - at (`key` in )?`\$((?:\.\w+|\[[0-9]+\]|\[\.\.\.\])*)`)?")
_STEP = re.compile(r"\.(\w+)|\[([0-9]+)\]|\[(\.\.\.)\]")
_OF_FIELD = re.compile(r"(?s)Object (missing required|contains unknown) field `(.*)`")


def refusal(kind: Any, body: bytes, error: msgspec.ValidationError) -> tuple[str, str]:
    """The field of the body that msgspec refuses, and what is allowed there. ``kind``: the type that the body
    was to have."""
    said, of_key, path = _MESSAGE.fullmatch(str(error)).groups()  # type: ignore[union-attr]
    place, kind = _place(kind, json.loads(body), path or "")
    cause, of_field = error.__cause__, _OF_FIELD.fullmatch(said)
    if isinstance(cause, NotAllowedError):
        return _joined(place, cause.field), cause.says or _sentence(_field(kind, cause.field))
    if of_field is None:
        kind = get_args(_plain(kind))[0] if of_key else kind
        return place, _sentence(kind) if place else "the body must be an object"
    lacks, name = of_field.groups()
    if lacks == "missing required":
        return _joined(place, name), _sentence(_field(kind, name))
    names = ", ".join(field.encode_name for field in msgspec.structs.fields(_plain(kind)))
    return _joined(place, name[:_MAX_UNKNOWN]), f"no such field; allowed: {names}"


def _place(kind: Any, value: Any, path: str) -> tuple[str, Any]:
    """The place that msgspec's path means, which names no member of an object that is none of ours, and its
    type."""
    place = ""
    for field, at, member in _STEP.findall(path):
        if field:
            kind, value, place = _field(kind, field), value.get(field), _joined(place, field)
        elif at:
            kind, value, place = _member(kind), value[int(at)], f"{place}[{at}]"
        elif member:
            kind = _member(kind)
            name = next((name for name, inside in value.items() if not _fits(inside, kind)), None)
            if name is None:  # deep in it is a number that no type of ours can be
                return place, Annotated[Any, allowed("its numbers must be of 64 bits")]
            value, place = value[name], _joined(place, name)
    return place, kind


def _joined(place: str, field: str) -> str:
    return f"{place}.{field}" if place else field


def _fits(value: object, kind: Any) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


def _plain(kind: Any) -> Any:
    """The type itself, without forms, null and absence."""
    if get_origin(kind) is Annotated:
        return _plain(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return _plain(get_args(kind)[0])
    return kind


def _field(kind: Any, name: str) -> Any:
    return next(each.type for each in msgspec.structs.fields(_plain(kind)) if each.encode_name == name)


def _member(kind: Any) -> Any:
    return get_args(_plain(kind))[-1]


def _sentence(kind: Any) -> str:
    """What is allowed of a type."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        own = (sentence(form) for form in arguments[1:] if isinstance(form, Meta))
        return next(filter(None, own), "") or _sentence(arguments[0])
    if origin in (Union, UnionType):
        return _sentence(arguments[0])
    if origin is Literal:
        return f"it must be {' or '.join(map(str, arguments))}"
    return _USUAL.get(origin or kind, "it must be an object")
