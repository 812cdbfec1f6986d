"""The log: one line a thing, whatever is in it."""

from hypothesis import given
from hypothesis import strategies as st

from sidecar import log


def test_plain_values_stand_bare_and_others_in_quotes() -> None:
    assert log.line("away", reason='it said "no"', spooled=3, empty="") == (
        'event=away reason="it said \\"no\\"" spooled=3 empty=""'
    )


@given(st.text())
def test_a_line_is_one_line_of_ascii(text: str) -> None:
    line = log.line("e", reason=text)

    assert line.isascii()
    assert line.splitlines() == [line]
