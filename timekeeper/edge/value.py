"""Immutable values that take little memory to import.

The sidecar runs once per GPU pod. ``dataclasses`` imports ``inspect`` (1.4 MiB), ``typing`` takes 0.5 MiB,
and each named tuple 20 KiB. ``value`` promises what ``dataclass(frozen=True, slots=True)`` does for a tenth
of that, and type checkers treat it as one.
"""

from __future__ import annotations

# Type checkers take this name for true. The one in typing would import typing.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Generic, TypeVar, dataclass_transform

    T = TypeVar("T")

    class Of(Generic[T]):
        """The base of a generic class."""
else:

    def dataclass_transform(**_: bool) -> Callable[[T], T]:
        """What ``typing.dataclass_transform`` does at run time: nothing."""
        return lambda decorator: decorator

    # What ``typing.Generic`` does at run time: nothing.
    Of = type("Of", (), {"__slots__": (), "__class_getitem__": classmethod(lambda cls, _: cls)})


@dataclass_transform(frozen_default=True)
def value(cls: type[T]) -> type[T]:
    """Makes a class with annotated fields an immutable value. Its constructor takes every field, also
    those that the class assigns something to (`assigned`)."""
    fields = tuple(cls.__annotations__)
    declared = {name: each for name, each in vars(cls).items() if name in fields}
    left_out = ("__dict__", "__weakref__", *declared)
    body = {name: each for name, each in vars(cls).items() if name not in left_out} | {"declared": declared}
    bases = tuple(base for base in cls.__bases__ if base is not object)
    fields_too = {"__slots__": fields, "__match_args__": fields}
    made: type[T] = type(cls.__name__, (_Value, *bases), body | fields_too)
    return made


def assigned(cls: type) -> dict[str, Any]:
    """What a value's class assigns to fields, by their names."""
    found: dict[str, Any] = vars(cls)["declared"]
    return found


_assign = object.__setattr__


class _Value:
    __slots__: tuple[str, ...] = ()

    def __init__(self, *given: object, **named: object) -> None:
        names = self.__slots__
        if named:
            given += tuple(named.pop(name) for name in names[len(given) :] if name in named)
        if named or len(given) != len(names):
            raise TypeError(f"{type(self).__name__} takes each of {', '.join(names)} once")
        for name, each in zip(names, given):  # noqa: B905 as many; an argument would cost time
            _assign(self, name, each)

    def __setattr__(self, name: str, _: object) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} is fixed")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} is fixed")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash(self._fields())

    def __repr__(self) -> str:
        pairs = (f"{name}={each!r}" for name, each in zip(self.__slots__, self._fields(), strict=True))
        return f"{type(self).__name__}({', '.join(pairs)})"

    def _fields(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in self.__slots__)
