"""Tables of one writer, of which other threads get what is in them at one moment."""

from collections.abc import Hashable, ItemsView, Iterator, Mapping, ValuesView
from typing import Any, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
Member = TypeVar("Member", bound=Hashable)

_MOST_LATER = 1_000  # changes beside a whole copy
_GONE: Any = object()


class Frozen(Mapping[Key, Value]):
    """What a table had at one moment: a whole copy of an earlier one, and what had changed since. It never
    changes; any thread may read it."""

    __slots__ = ("_before", "_later", "_whole")

    def __init__(self, before: Mapping[Key, Value], later: Mapping[Key, Value]) -> None:
        self._before, self._later = before, later
        self._whole: Mapping[Key, Value] | None = None if later else before

    def followed_by(self, changes: Mapping[Key, Value]) -> "Frozen[Key, Value]":
        """The next moment; ``_GONE`` in place of a value: it was removed."""
        after = Frozen(self._before, {**self._later, **changes})
        is_small = len(after._later) <= min(_MOST_LATER, len(self._before))
        return after if is_small else Frozen(after.whole(), {})

    def whole(self) -> Mapping[Key, Value]:
        """All of it in one dictionary, in the order in which it was added."""
        if self._whole is None:  # of two threads, both make the same
            every = {**self._before, **self._later}
            for key in [key for key, value in self._later.items() if value is _GONE]:
                del every[key]
            self._whole = every
        return self._whole

    def get(self, key: Key, default: Any = None) -> Any:
        """As of any mapping."""
        value = self._later.get(key, self)
        if value is self:
            return self._before.get(key, default)
        return default if value is _GONE else value

    def __getitem__(self, key: Key) -> Value:
        value: Value = self.get(key, _GONE)
        if value is _GONE:
            raise KeyError(key)
        return value

    def __contains__(self, key: Any) -> bool:
        return self.get(key, _GONE) is not _GONE

    def __iter__(self) -> Iterator[Key]:
        return iter(self.whole())

    def __len__(self) -> int:
        return len(self.whole())

    def items(self) -> ItemsView[Key, Value]:
        """As of any mapping."""
        return self.whole().items()

    def values(self) -> ValuesView[Value]:
        """As of any mapping."""
        return self.whole().values()


class Table(dict[Key, Value]):
    """A dictionary that notes which keys have changed. ``version`` counts the changes. Only what is defined
    here may change it."""

    def __init__(self, values: Mapping[Key, Value] | None = None) -> None:
        super().__init__(values or {})
        self.version = 0
        self._changed: dict[Key, None] = dict.fromkeys(self)  # in their order
        self._frozen: Frozen[Key, Any] = Frozen({}, {})

    def put(self, key: Key, value: Value) -> bool:
        """Add or replace it; False if the same is there."""
        if self.get(key, _GONE) == value:
            return False
        self[key] = value
        return True

    def remove(self, key: Key) -> Value | None:
        """What was there; None: nothing."""
        gone: Value | None = self.pop(key, None)
        return gone

    def keep(self, key: Key, value: Value, is_gone: bool) -> None:
        """Put it, or remove it if it is gone."""
        if is_gone:
            self.remove(key)
        else:
            self.put(key, value)

    def frozen(self) -> Frozen[Key, Any]:
        """What is in it now. It costs what has changed since the last call; without a change it is the same
        object."""
        if self._changed:
            changes = {key: self._kept(self[key]) if key in self else _GONE for key in self._changed}
            self._changed.clear()
            self._frozen = self._frozen.followed_by(changes)
        return self._frozen

    def _kept(self, value: Value) -> Any:
        return value

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise TypeError("a table changes by a key")

    clear = update = setdefault = popitem = __ior__ = _refuse

    def _note(self, key: Key) -> None:
        self.version += 1
        self._changed[key] = None

    def __setitem__(self, key: Key, value: Value) -> None:
        self._note(key)
        super().__setitem__(key, value)

    def __delitem__(self, key: Key) -> None:
        super().__delitem__(key)
        self._note(key)

    def pop(self, key: Key, default: Any = _GONE) -> Any:
        """As of any dictionary."""
        if key in self:
            self._note(key)
        return super().pop(key) if default is _GONE else super().pop(key, default)


class GroupTable(Table[Key, set[Member]], Generic[Key, Member]):
    """Keys, each with the members of its group; a group without a member is not there. ``version`` counts
    the groups that come and go."""

    def add(self, key: Key, member: Member) -> None:
        """The group gets the member."""
        if key not in self:
            self[key] = set()
        self[key].add(member)
        self._changed[key] = None

    def leave(self, key: Key, member: Member) -> None:
        """The group loses it, if it has it."""
        there = self.get(key)
        if there is None or member not in there:
            return
        there.remove(member)
        self._changed[key] = None
        if not there:
            del self[key]

    def _kept(self, value: set[Member]) -> Any:
        return frozenset(value)
