"""What `make test` and `make coverage` choose, and what a run tells of its processor time."""

import pytest
from _pytest.mark.expression import Expression

from tests.run import ALL, COVERED
from tests.support.processor_time import BUILD, dearest, kind_of, report


def chooses(expression: str, marks: set[str]) -> bool:
    """Whether pytest's option -m with this expression chooses a test that has these marks."""

    def has(name: str, /, **_: object) -> bool:
        return name in marks

    return Expression.compile(expression).evaluate(has)


@pytest.mark.parametrize(
    ("marks", "is_covered"),
    [
        ({"unit"}, True),
        ({"ledger", "untraced"}, False),
        ({"cluster"}, False),
        ({"cluster", "traced"}, True),
        ({"cluster", "traced", "soak"}, False),
    ],
)
def test_coverage_traces_what_passes_lines_that_no_other_test_passes(
    marks: set[str], is_covered: bool
) -> None:
    assert chooses(COVERED, marks) is is_covered
    assert chooses(ALL, marks) is ("soak" not in marks)


def test_what_no_tier_took_is_start_up_and_a_budget_is_in_units_of_the_reference_loop() -> None:
    taken = {"unit": 250.0, "cluster": 700.4, BUILD: 900.0, "checks and start-up": 5.0}

    assert report(taken, total_s=2_000.0, unit_s=1.5) == [
        "== seconds of processors, beside the budget; the reference loop, its unit, took 1.50",
        "                      unit    250 of   300",
        "                    ledger      0 of   300",
        "                   process      0 of   525",
        "                   cluster    700 of  1050",
        "       checks and start-up    150 of   225",
        "                       all   1100 of  2400",
        "build of the control plane    900",
    ]


def test_a_run_names_each_tier_above_its_budget() -> None:
    lines = report({"unit": 201.0, "ledger": 200.0}, total_s=401.0, unit_s=1.0)

    assert lines[-1] == "== ABOVE BUDGET: unit"


def test_a_run_names_the_files_that_took_most() -> None:
    files = {f"tests/f{number}.py": float(number) for number in range(1, 31)}

    lines = dearest(files)

    assert lines[:2] == ["== the dearest files", "      30 tests/f30.py"]
    assert len(lines) == 21
    assert dearest({}) == []


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        (["/cache/bin/kube-apiserver", "--secure-port=6443"], "kube-apiserver"),
        (["/venv/bin/python", "-m", "timekeeper", "settle", "--database=x"], "timekeeper settle"),
        (["/venv/bin/python3.11", "-P", "-m", "webhook", "--port=1"], "webhook"),
        (["/venv/bin/python", "-c", "print()"], "python -c"),
        (["/venv/bin/python", "/venv/bin/kubectl-bursar", "doctor"], "kubectl-bursar doctor"),
        (["/venv/bin/python", "-u", "-c", "import sys;exec(eval(sys.stdin.readline()))"], "worker of tests"),
        (["postgres: checkpointer "], "postgres:"),
    ],
)
def test_a_process_is_of_the_kind_of_what_it_runs(command: list[str], kind: str) -> None:
    assert kind_of(command) == kind
