"""Metered pods cost the settler what governed ones do."""

from tests.bench.metered import compared, table


def test_a_tick_its_memory_and_an_event_of_metered_pods_cost_at_most_a_tenth_more() -> None:
    found = compared(200)

    assert max(found["times"].values()) <= 1.1, table(found)
