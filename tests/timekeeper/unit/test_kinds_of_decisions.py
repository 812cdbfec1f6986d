"""What the page of decisions says of their reasons."""

import pytest

from timekeeper.core.decisions import EVICTED, KINDS, RELEASED, WARNED
from timekeeper.settler import releaser
from timekeeper.settler.evictions import reasons


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (WARNED, reasons.NOTICE),
        (WARNED, reasons.OVERTIME_WARNING),
        (EVICTED, reasons.SPENT),
        (EVICTED, reasons.OVERUSED),
        (EVICTED, reasons.OVERTIME),
        (RELEASED, releaser.RELEASED),
        *((kind, reason) for reason, kind in reasons.IDLE_REASONS.values()),
    ],
)
def test_each_reason_for_which_the_timekeeper_acts_on_a_pod_is_explained(kind: str, reason: str) -> None:
    assert f"`{reason}`" in KINDS[kind].reasons
