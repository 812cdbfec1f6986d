"""JSON in annotations, which a tenant may write where nothing refuses it."""

import pytest

from timekeeper.core.json_values import decoded
from timekeeper.core.request.cards import decode_placement
from timekeeper.core.values import UndecodableError


@pytest.mark.parametrize(
    "text", ["[" * 100_000, r'"\ud800"', r'{"\udfff":1}', r'["\\\uD800\u0041"]', "", "{"]
)
def test_what_no_database_takes_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        decoded(text)


@pytest.mark.parametrize("text", [r'"\ud83d\ude00"', r'"\\ud800"', r'"\u0000"', "[1, null]"])
def test_all_else_is_read(text: str) -> None:
    decoded(text)


def test_a_placement_with_half_a_letter_is_not_read() -> None:
    card = r'{"index":0,"memory_mib":1,"share_milli":1,"uuid":"\ud800"}'

    with pytest.raises(UndecodableError, match="not JSON"):
        decode_placement(f'{{"version":1,"containers":{{"main":[{card}]}}}}')
