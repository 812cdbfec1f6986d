"""Values that no client of ours sends, as JSON text, and the places of a document where they are put."""

import copy
from collections.abc import Iterable, Iterator
from itertools import cycle, islice
from typing import Any

import orjson

from tests.worlds import Json

# in place of what is right, as JSON text, for not all of it is what a Python value could be written as
WRONG = (
    *("null", "true", "false", "0", "-1", "1", "0.5", "1e400", "-1e400", "1e-400", "1" * 400),
    *("9223372036854775808", "18446744073709551616", '""', '"all"', '"\\u0000"', '"\\ud800"', '"\\u0660"'),
    *('"1e999999999"', "[]", "{}", "[null]", '[{"name":1}]', '{"name":[]}', "[[[[]]]]", '{"":""}'),
    *('[{"name":"bursar-sidecar"}]', '"NaN"', "NaN", "Infinity", "01", "'x'", '"\x01"'),
    *("[" * 1500 + "]" * 1500, '{"a":' * 1500 + "1" + "}" * 1500, '{"uid":"1","uid":"2"}'),
    *('"' + "x" * 70_000 + '"', '"' + "é" * 300 + '"', '"a\\nevent=forged"', "1e999", "1e30", f"{2**70}"),
    *(f"-{2**70}", "1000000000000000", "[" * 300 + "]" * 300, '{"a":' * 300 + "1" + "}" * 300, '"\\udc00"'),
)
_HOLE = "a place for something else"

Place = tuple[str | int, ...]


def places(value: Any, path: Place = ()) -> Iterator[Place]:
    """The path of every value in a JSON document."""
    yield path
    children: Iterable[tuple[str | int, Any]] = ()
    if isinstance(value, dict):
        children = value.items()
    elif isinstance(value, list):
        children = enumerate(value)
    for key, child in children:
        yield from places(child, (*path, key))


def spoilt(raw: Json, path: Place, text: str) -> bytes:
    """The document with this JSON text at the path."""
    if not path:
        return text.encode(errors="surrogatepass")
    changed = copy.deepcopy(raw)
    parent: Any = changed
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = _HOLE
    return orjson.dumps(changed).replace(f'"{_HOLE}"'.encode(), text.encode(errors="surrogatepass"), 1)


def spoilt_in_turn(raw: Json, rounds: int = 1) -> Iterator[tuple[str, bytes]]:
    """The document, wrong at one place each time, and what is wrong there: each place and each value has its
    turn ``rounds`` times."""
    where = list(places(raw))
    turns = zip(cycle(where), cycle(WRONG), strict=False)
    for place, text in islice(turns, rounds * max(len(where), len(WRONG))):
        yield f"{place}: {text[:60]}", spoilt(raw, place, text)
