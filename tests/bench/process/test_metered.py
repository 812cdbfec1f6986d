"""Metered pods, and pods with claims, cost the settler what governed ones do."""

import pytest

from tests.bench.metered import TIMES, compared, table


@pytest.mark.soak
def test_a_tick_memory_and_an_event_cost_at_most_a_tenth_more_of_metered_pods_and_half_of_claims() -> None:
    """In each tick one pod or claim ends. Of so few pods, that is most of a tick's work."""
    found = compared(200)

    assert max(found[f"{TIMES}metered"].values()) <= 1.1, table(found)
    assert max(found[f"{TIMES}half claims"].values()) <= 1.5, table(found)
