"""What a review, a filter, a bind, a heartbeat and a tick cost, beside the counts that are committed."""

import os
from pathlib import Path

import pytest

from tests.bench.cost import counters
from tests.bench.cost.__main__ import COUNTS, PYTHON, ROOT, counted, environment, expected
from tests.bench.cost.comparison import named, rows

pytestmark = pytest.mark.make_all("it counts what operations cost")

ANEW = "if that is meant, write them anew: .venv/bin/python -m tests.bench.cost --write"


def test_no_operation_costs_a_tenth_more_than_its_committed_counts() -> None:
    there = expected()
    if not there and "CI" not in os.environ:
        pytest.skip(f"{COUNTS.name} has no counts of Python {PYTHON}, and bytecodes differ between versions")

    compared = list(rows(counted(), there))

    worse = [row for row in compared if row.is_worse or row.fault]
    assert not worse, f"{named(worse, COUNTS.name)}\n{ANEW}"


def test_a_pod_with_a_claim_costs_admission_at_most_a_fifth_more_than_one_with_limits() -> None:
    there = expected()
    if not there and "CI" not in os.environ:
        pytest.skip(f"{COUNTS.name} has no counts of Python {PYTHON}")
    by_limits, by_claim = there["mutate"], there["mutate, a claim"]

    assert {name: by_claim[name] / by_limits[name] <= 1.2 for name in ("bytecodes", "C calls")} == {
        "bytecodes": True,
        "C calls": True,
    }


def test_instructions_are_what_perf_stat_counts_of_a_command(tmp_path: Path) -> None:
    perf = tmp_path / "perf"
    perf.write_text('#!/bin/sh\nshift 8\n"$@" && echo "4711,,instructions:u,1,100.00,,"\n')
    perf.chmod(0o755)

    assert counters.instructions(["true"], ROOT, environment(), str(perf)) == 4711
    with pytest.raises(RuntimeError):
        counters.instructions(["false"], ROOT, environment(), str(perf))
