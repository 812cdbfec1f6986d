"""Tables, of which other threads get what is in them at one moment."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timekeeper.core.tables import GroupTable, Table

KEYS = st.integers(0, 12)
STEPS = st.lists(st.tuples(st.sampled_from(("put", "set", "remove", "look")), KEYS, st.integers(0, 2)))


@given(there=st.sets(KEYS), steps=STEPS)
def test_what_was_frozen_stays_as_it_was(there: set[int], steps: list[tuple[str, int, int]]) -> None:
    """Few changes of a large table are kept beside a whole copy; many make a new one."""
    table: Table[int, int] = Table(dict.fromkeys(there, 0))
    looks = [(table.frozen(), dict(table))]
    for step, key, value in steps:
        before, version = dict(table), table.version
        if step == "put":
            assert table.put(key, value) == (before.get(key) != value) == (table.version > version)
        elif step == "set":
            table[key] = value
        elif step == "remove":
            assert table.remove(key) == before.get(key)
            assert (table.version > version) == (key in before)
        else:
            looks.append((table.frozen(), before))

    for frozen, was in [*looks, (table.frozen(), dict(table))]:
        assert dict(frozen) == was
        assert [frozen.get(key, -1) for key in range(13)] == [was.get(key, -1) for key in range(13)]
        assert [key in frozen for key in range(13)] == [key in was for key in range(13)]
        assert (len(frozen), dict(frozen.items()), sorted(frozen.values())) == (
            *(len(was), was),
            sorted(was.values()),
        )


@given(steps=st.lists(st.tuples(st.sampled_from(("add", "leave", "look")), st.integers(0, 3), KEYS)))
def test_a_group_that_was_frozen_gets_no_later_member(steps: list[tuple[str, int, int]]) -> None:
    groups: GroupTable[int, int] = GroupTable()
    known: dict[int, set[int]] = {}
    looks = [(groups.frozen(), dict[int, set[int]]())]
    for step, key, member in steps:
        version, was_there = groups.version, key in known
        if step == "add":
            groups.add(key, member)
            known.setdefault(key, set()).add(member)
        elif step == "leave":
            groups.leave(key, member)
            known.get(key, set()).discard(member)
        else:
            looks.append((groups.frozen(), {key: set(there) for key, there in known.items()}))
        known = {key: there for key, there in known.items() if there}
        assert groups == known
        assert (groups.version > version) == ((key in known) != was_there)

    for frozen, was in looks:
        assert dict(frozen) == was


def test_without_a_change_the_frozen_table_is_the_same_object() -> None:
    table = Table({"a": 1})
    first = table.frozen()

    assert table.put("a", 1) is False
    assert table.remove("b") is None
    assert table.frozen() is first
    table["a"] = 2
    assert (table.frozen()["a"], first["a"]) == (2, 1)
    with pytest.raises(KeyError):
        first["b"]


def test_the_order_is_that_of_the_dictionary_where_nothing_comes_back() -> None:
    table = Table(dict.fromkeys("abcdef", 0))
    table.frozen()
    table["g"], table["b"] = 1, 1
    del table["c"]

    assert list(table.frozen()) == list(table) == list("abdefg")


def test_a_table_refuses_what_it_would_not_note() -> None:
    table = Table({"a": 1})

    for name, arguments in (("update", [{"b": 2}]), ("clear", []), ("setdefault", ["b", 2]), ("popitem", [])):
        with pytest.raises(TypeError):
            getattr(table, name)(*arguments)
    assert table == {"a": 1}
