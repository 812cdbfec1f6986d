"""The log: one line a thing, whatever is in it."""

import re

from hypothesis import given
from hypothesis import strategies as st

from sidecar import log
from tests.sidecar.worlds import ROOT


def test_plain_values_stand_bare_and_others_in_quotes() -> None:
    assert log.line("away", reason='it said "no"', spooled=3, empty="") == (
        'event=away reason="it said \\"no\\"" spooled=3 empty=""'
    )


@given(st.text())
def test_a_line_is_one_line_of_ascii(text: str) -> None:
    line = log.line("e", reason=text)

    assert line.isascii()
    assert line.splitlines() == [line]


def test_every_line_of_the_log_stands_in_the_docs() -> None:
    code = "".join(path.read_text() for path in (ROOT / "sidecar").glob("*.py"))
    said = set(re.findall(r'(?:say|_once)\(\s*"([a-z-]+)"', code))
    said |= set(re.findall(r'event = "([a-z-]+)" if .* else "([a-z-]+)"', code)[0])
    page = (ROOT / "docs" / "governed-pods.md").read_text()
    _, table, _ = re.split(r"^### What it says$|^## What it asks for$", page, flags=re.MULTILINE)
    rows = [
        line.split("|")[1] for line in table.splitlines() if line.startswith("| `") and "event=" not in line
    ]

    assert said == {name for row in rows for name in re.findall(r"`([a-z-]+)`", row)}
