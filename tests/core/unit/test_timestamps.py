"""Times as Kubernetes writes them."""

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timekeeper.core.ledger.hold import millis
from timekeeper.core.object_names import timestamp

MS = 1_795_168_800_123


def test_a_time_has_the_digits_that_are_asked_for_and_is_cut_off() -> None:
    assert [timestamp(MS), timestamp(MS, "milliseconds"), timestamp(MS, "microseconds")] == [
        "2026-11-20T10:00:00Z",
        "2026-11-20T10:00:00.123Z",
        "2026-11-20T10:00:00.123000Z",
    ]
    assert timestamp(MS // 1000 * 1000 + 999) == "2026-11-20T10:00:00Z"
    assert timestamp(-1, "milliseconds") == "1969-12-31T23:59:59.999Z"
    with pytest.raises((ValueError, OverflowError)):
        timestamp(253_402_300_800_000)


@given(st.integers(946_684_800_000, 253_402_300_799_999))
def test_every_time_is_read_as_it_was_written(at_ms: int) -> None:
    assert millis(timestamp(at_ms, "milliseconds")) == at_ms
    assert datetime.fromisoformat(timestamp(at_ms)).timestamp() == at_ms // 1000
