"""Limits of waits follow how busy the machine is."""

import os

import pytest

from deploy.local.limits import on_this_machine


@pytest.mark.parametrize(
    ("load", "processors", "limit_s"), [(0.3, 2, 60.0), (2.0, 2, 60.0), (9.0, 2, 270.0), (3.0, None, 180.0)]
)
def test_a_limit_is_as_much_longer_as_more_wants_to_run_than_there_are_processors(
    monkeypatch: pytest.MonkeyPatch, load: float, processors: int | None, limit_s: float
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(os, "cpu_count", lambda: processors)

    assert on_this_machine(60.0) == limit_s
