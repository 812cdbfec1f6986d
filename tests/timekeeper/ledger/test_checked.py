"""How often the machine asks the ledger again, which must not go on for ever."""

from types import SimpleNamespace
from typing import Any

import pytest
from flask import Flask, Response

from tests.timekeeper.checked import Checked


def asked(*statuses: int) -> tuple[Any, list[int]]:
    """One that asks a ledger with these answers, the last of them for ever, and what it was answered."""
    left, answered = list(statuses), list[int]()

    def get(_path: str) -> Response:
        answered.append(left.pop(0) if len(left) > 1 else left[0])
        return Response("{}", answered[-1], mimetype="application/json")

    return SimpleNamespace(town=SimpleNamespace(get=get), away=False), answered


def test_a_ledger_that_stays_away_is_tried_three_times_and_then_reported() -> None:
    life, answered = asked(503)

    with Flask("x").app_context(), pytest.raises(AssertionError):
        Checked._told(life, "/v1/standings")

    assert answered == [503, 503, 503]


def test_a_ledger_that_was_away_for_a_moment_is_tried_again() -> None:
    life, answered = asked(503, 503, 200)

    with Flask("x").app_context():
        assert Checked._told(life, "/v1/standings") == {}

    assert answered == [503, 503, 200]
