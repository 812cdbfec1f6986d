"""Limits of waits follow how busy the machine is."""

import pytest

from deploy.local.limits import beside


@pytest.mark.parametrize(
    ("load", "processors", "limit_s"), [(0.3, 2, 60.0), (2.0, 2, 60.0), (9.0, 2, 270.0), (3.0, 1, 180.0)]
)
def test_a_limit_is_as_much_longer_as_more_wants_to_run_than_there_are_processors(
    load: float, processors: int, limit_s: float
) -> None:
    assert beside(60.0, load, processors) == limit_s
