"""An immutable map whose next version shares all but one small piece with the last.

Pods and nodes are kept in one each. A change copies a few hundred bytes whatever the cluster's size, readers
of the old version keep it whole, and the difference of two versions is found without visiting what they
share. Two levels of 64 branches over small dicts suffice for 100,000 keys.
"""

from collections.abc import Iterator, Mapping
from itertools import compress
from operator import is_not
from typing import Any, Generic, TypeVar

V = TypeVar("V")

_FAN = 64
_MANY = _FAN * _FAN // 2  # more keys than this change most of the small dicts
_Branch = tuple[dict[str, V], ...]
_EMPTY: dict[str, Any] = {}  # shared by the empty parts of every map
_BARE_BRANCH: _Branch[Any] = (_EMPTY,) * _FAN
_BARE: tuple[_Branch[Any], ...] = (_BARE_BRANCH,) * _FAN


class Map(Generic[V]):
    """Text -> value. ``set`` and ``without`` return the next version."""

    __slots__ = ("_branches", "_size")

    def __init__(self, content: Mapping[str, V] | None = None) -> None:
        self._branches: tuple[_Branch[V], ...] = _BARE
        self._size = 0
        if content:
            self._branches, self._size = _filled(content), len(content)

    def get(self, key: str) -> V | None:
        """The key's value; None if it has none."""
        code = hash(key)
        return self._branches[code & 63][code >> 6 & 63].get(key)

    def set(self, key: str, value: V) -> "Map[V]":
        """The map with this value for the key."""
        code = hash(key)
        leaf = self._branches[code & 63][code >> 6 & 63]
        return self._with_leaf(code, {**leaf, key: value})

    def with_all(self, content: Mapping[str, V]) -> "Map[V]":
        """The map with these values, too."""
        if not self or len(content) > _MANY:
            return Map({**dict(self.items()), **content})
        found = self
        for key, value in content.items():
            found = found.set(key, value)
        return found

    def without(self, key: str) -> "Map[V]":
        """The map without the key; the same object if it has no such key."""
        code = hash(key)
        leaf = self._branches[code & 63][code >> 6 & 63]
        if key not in leaf:
            return self
        return self._with_leaf(code, {k: v for k, v in leaf.items() if k != key})

    def items(self) -> Iterator[tuple[str, V]]:
        """Every key with its value, in no particular order."""
        for branch in self._branches:
            if branch is not _BARE_BRANCH:
                for leaf in filter(None, branch):
                    yield from leaf.items()

    def values(self) -> Iterator[V]:
        """All values, in no particular order."""
        return (value for _, value in self.items())

    def changed_since(self, old: "Map[V]") -> Iterator[str]:
        """The keys whose values are not the same objects in ``old``, including removed ones."""
        for mine, theirs in _differing(self._branches, old._branches):
            for leaf, former in _differing(mine, theirs):
                yield from (k for k, v in leaf.items() if former.get(k) is not v)
                yield from (k for k in former if k not in leaf)

    def __len__(self) -> int:
        return self._size

    def __contains__(self, key: str) -> bool:
        return self.get(key) is not None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Map) and len(self) == len(other) and self._branches == other._branches

    def __repr__(self) -> str:
        return f"Map({dict(self.items())!r})"

    def _with_leaf(self, code: int, leaf: dict[str, V]) -> "Map[V]":
        first, second = code & 63, code >> 6 & 63
        branch = self._branches[first]
        new: Map[V] = Map.__new__(Map)
        new._branches = _replaced(self._branches, first, _replaced(branch, second, leaf))
        new._size = self._size + len(leaf) - len(branch[second])
        return new


T = TypeVar("T")


def _replaced(row: tuple[T, ...], at: int, value: T) -> tuple[T, ...]:
    return (*row[:at], value, *row[at + 1 :])


def _differing(mine: tuple[T, ...], theirs: tuple[T, ...]) -> Iterator[tuple[T, T]]:
    """The pairs whose two sides are not the same object. Compared in C: nearly all are the same."""
    return compress(zip(mine, theirs, strict=True), map(is_not, mine, theirs))


def _filled(content: Mapping[str, V]) -> tuple[_Branch[V], ...]:
    rows: dict[int, list[dict[str, V]]] = {}  # only those that hold something
    for key, value in content.items():
        code = hash(key)
        row = rows.get(code & 63)
        if row is None:
            row = rows[code & 63] = [_EMPTY] * _FAN
        second = code >> 6 & 63
        if row[second] is _EMPTY:
            row[second] = {}
        row[second][key] = value
    return tuple(tuple(rows[at]) if at in rows else _BARE_BRANCH for at in range(_FAN))
