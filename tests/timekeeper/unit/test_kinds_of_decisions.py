"""What the page of decisions says of their reasons."""

import pytest

from timekeeper.core.decisions import EVICTED, KINDS, RELEASED, WARNED
from timekeeper.settler import releaser
from timekeeper.settler.evictions import budget_notices, evictor, idle_evictor, overtime_evictor


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (WARNED, budget_notices.NOTICE),
        (WARNED, overtime_evictor.WARNING),
        (EVICTED, budget_notices.EVICTED),
        (EVICTED, evictor.EVICTED),
        (EVICTED, overtime_evictor.EVICTION),
        (RELEASED, releaser.RELEASED),
        *((kind, reason) for reason, kind in idle_evictor.REASONS.values()),
    ],
)
def test_each_reason_for_which_the_timekeeper_acts_on_a_pod_is_explained(kind: str, reason: str) -> None:
    assert f"`{reason}`" in KINDS[kind].reasons
