"""JSON that a decoder refuses is mended: it gives what Go reads, without what is too deep or too large."""

import json
import random
import re
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sidecar.node.kube import trimmed_json
from tests.support.profile import examples, seed
from tests.support.raw_values import VALUES, drawn, nested
from timekeeper.edge.mended_json import LEVELS, mended
from timekeeper.runtime.api_server import Api

FFFD = "\ufffd"

ORDINARY = st.recursive(
    st.none() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
ANY_LETTERS = st.text(st.characters(exclude_categories=()) | st.sampled_from('\ud83d\ude00\\"[]{}'))


def without_lone(value: str) -> str:
    """The text as Go reads it: pairs as one letter, U+FFFD for half of one."""
    return re.sub(
        "[\ud800-\udfff]", FFFD, value.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    )


def texts(value: Any) -> Iterator[str]:
    """Every text and key in it, however deep."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, str):
            yield part
        elif isinstance(part, dict | list):
            waiting += part
            waiting += part.values() if isinstance(part, dict) else ()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a lone high surrogate", FFFD),
        ("a lone low surrogate", FFFD),
        ("a high surrogate twice, then a low one", FFFD + "\U0001f600"),
        ("a low surrogate after a pair", "\U0001f600" + FFFD),
        ("a lone surrogate after a backslash", "\\" + FFFD),
        ("no surrogate after a backslash", "\\ud800"),
        ("a lone surrogate in a key", {FFFD: 1}),
        ("a byte that is no UTF-8", f"a{FFFD}b"),
        ("a surrogate in UTF-8", FFFD * 3),
        ("a letter that is cut off", FFFD * 2),
        ("a byte that is no UTF-8 in a key", {FFFD: 1}),
        ("NUL", "a\0b"),
        ("six bytes a letter", "<" * 2_000),
        ("an endless number", None),
        ("an endless number below 0", [None, 2]),
        ("5,000 digits", None),
        ("a key twice", {"a": 2}),
        ("brackets in a text", "[" * 2_000),
        ("an escaped quote before brackets", '"' + "[" * 2_000 + "\\"),
    ],
)
def test_what_is_odd_is_as_go_reads_it(value: str, expected: object) -> None:
    assert json.loads(mended(VALUES[value])) == orjson.loads(mended(VALUES[value])) == expected


@pytest.mark.parametrize("levels", [LEVELS - 1, LEVELS, LEVELS + 1, 9_998])
@pytest.mark.parametrize(("opening", "closing"), [(b'{"a":', b"}"), (b"[", b"]")])
def test_what_is_too_deep_is_null_and_all_else_stays(levels: int, opening: bytes, closing: bytes) -> None:
    text = b'{"before":[1],"deep":%b,"after":2}' % nested(levels - 1, opening, closing)

    read = orjson.loads(mended(text))
    inmost: Any = read["deep"]
    depth = 1
    while isinstance(inmost, dict | list):
        inmost = inmost["a"] if isinstance(inmost, dict) else inmost[0]
        depth += 1

    assert (read["before"], read["after"]) == ([1], 2)
    assert (inmost, depth) == ((1, levels) if levels <= LEVELS else (None, LEVELS))


@settings(max_examples=examples(200))
@given(ORDINARY, st.booleans())
def test_ordinary_json_stays_as_it_is(value: object, is_ascii: bool) -> None:
    text = json.dumps(value, ensure_ascii=is_ascii).encode()

    assert mended(text) == text


@settings(max_examples=examples(300))
@given(st.dictionaries(ANY_LETTERS, ANY_LETTERS))
def test_every_lone_surrogate_is_replaced_and_no_other_letter(value: dict[str, str]) -> None:
    expected = {without_lone(key): without_lone(letters) for key, letters in value.items()}
    assume(len(expected) == len(value))

    assert orjson.loads(mended(json.dumps(value).encode())) == expected


@settings(max_examples=examples(300))
@given(st.binary() | st.text('{}[]":,\\-0.9eEu\ud800'.encode("utf-8", "ignore").decode()).map(str.encode))
def test_what_is_no_json_raises_nothing_else_than_before(text: bytes) -> None:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        try:
            Api.decode(text)
        except orjson.JSONDecodeError:
            return
        return
    assert Api.decode(text) == orjson.loads(text)


def test_every_drawn_value_is_read_by_every_decoder() -> None:
    draws = random.Random(seed())
    for at in range(examples(300)):
        value = b'{"a":%b}' % drawn(draws)
        for decoder in (Api.decode, trimmed_json.loads):
            read: Any = decoder(value)
            assert list(read) == ["a"], (at, value[:200])
            assert not any("\ud800" <= letter <= "\udfff" for text in texts(read) for letter in text), value[
                :200
            ]


@pytest.mark.parametrize(
    "text", [b"[" * 100_000, b'"' + rb"\u003c" * 200_000, b"-" * 200_000, b'"\\"' * 200_000]
)
def test_a_long_text_is_passed_once(text: bytes) -> None:
    """Each of these took minutes where a part was read again from each of its letters."""
    mended(text)
