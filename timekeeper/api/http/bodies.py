"""Bodies, read as their Structs declare them (`timekeeper.wire`). Of the first value that does not fit, the
caller learns the field, and what is allowed."""

import json
from functools import cached_property
from typing import Any, Generic, TypeVar

import msgspec

from timekeeper.runtime.http.problem_details import bad
from timekeeper.wire.forms import refusal

T = TypeVar("T")


class Body(Generic[T]):
    """A route's body: a JSON object, of which no field may be given twice. ``schema``: more of its form for
    the document."""

    def __init__(self, kind: type[T], schema: dict[str, Any] | None = None) -> None:
        self.kind, self.schema = kind, schema or {}

    @cached_property
    def _decoder(self) -> msgspec.json.Decoder[T]:
        return msgspec.json.Decoder(self.kind)

    @cached_property
    def _needles(self) -> tuple[bytes, ...]:
        fields = msgspec.structs.fields(self.kind)  # type: ignore[arg-type]
        return tuple(f'"{field.encode_name}"'.encode() for field in fields)

    def read(self, body: bytes) -> T:
        """The body's value. Raises a Problem that names a wrong field."""
        try:
            value = self._decoder.decode(body)
        except msgspec.ValidationError as error:
            raise bad(*_refusal(self.kind, body, error)) from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise bad("", "the body is not JSON") from error
        for needle in self._needles:
            if body.count(needle) > 1:
                _check_given_once(body)
        return value


def _refusal(kind: Any, body: bytes, error: msgspec.ValidationError) -> tuple[str, str]:
    """A body that is no JSON after its first wrong value is not JSON."""
    try:
        return refusal(kind, body, error)
    except (ValueError, RecursionError):
        return "", "the body is not JSON"


def _check_given_once(body: bytes) -> None:
    """Raises a Problem for a field that the body itself has twice. A name or a text further in may equal a
    field's name."""
    given: set[str] = set()
    for name, _ in json.loads(body, object_pairs_hook=list, parse_int=str, parse_float=str):
        if name in given:
            raise bad(name, "it must be given once")
        given.add(name)
