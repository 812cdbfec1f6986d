"""The page for auditors is code: its example happens as written, and its commands exist."""

import re
from datetime import UTC, datetime
from pathlib import Path

from tests.timekeeper.worlds import HOUR, MINUTE, T0, Town, gpu_pod, node
from timekeeper.accounts.usage import gpu_hours
from timekeeper.settings import AUDITING, read
from timekeeper.store import ledger as reading

PAGE = (Path(__file__).parents[3] / "docs" / "ledger.md").read_text()
ROW = re.compile(r"^(2026-\S+) +(2026-\S+) +(-?\d+) +(\w+) +(-?\d+)$", re.MULTILINE)


def test_the_example_happens_as_documented(tmp_path: Path) -> None:
    town = Town(tmp_path)
    town.begin(("nodes", node()))
    town.hear("pods", gpu_pod(percent=50, started_ms=T0 + MINUTE))
    town.advance(2 * HOUR)
    town.advance(2 * HOUR, heard=False)
    town.clock.turn(HOUR // 2)
    town.change("pods", gpu_pod(percent=50, started_ms=T0 + MINUTE, ended_ms=T0 + 90 * MINUTE))

    with town.store.reading() as connection:
        posted = reading.sessions_of(connection, ["uid-p"]).posted["uid-p"]
    rows = [
        (_time(each.from_ms), _time(each.to_ms), str(each.rate_milli), each.kind, str(each.amount))
        for each in posted
    ]

    assert ROW.findall(PAGE) == rows
    assert f"Together {town.charged():,}," in PAGE
    assert f"or {gpu_hours(town.charged())} GPU-hours" in PAGE
    assert town.charged() == 500 * 89 * MINUTE
    town.close()


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).replace(tzinfo=None).isoformat()


def test_every_command_is_documented_of_and_every_one_that_is_shown_is_read() -> None:
    shown = re.findall(r"^    bursar-timekeeper (.+)$", PAGE, re.MULTILINE)

    assert {read(line.split(), {}).command for line in shown} == set(AUDITING)
