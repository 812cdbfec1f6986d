"""What `make test` and `make coverage` choose, and what a run tells of its processor time."""

import pytest
from _pytest.mark.expression import Expression

from tests.run import ALL, COVERED, ROOT, processor_budgets
from tests.support.processor_time import BUILD, REST, by_role, by_tier, dearest, kind_of


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


def test_what_no_tier_took_is_start_up_and_units_are_of_the_reference_loop() -> None:
    taken = {"unit": 250.0, "cluster": 700.4, BUILD: 900.0, "checks and start-up": 5.0}

    assert by_tier(taken, total_s=2_000.0, unit_s=1.25) == [
        "== seconds of processors, and units; the reference loop, the unit, took 1.25",
        "     900    720  build of the control plane",
        "     700    560  cluster",
        "     250    200  unit",
        "     150    120  checks and start-up",
        "    1100    880  all but the build",
    ]


def test_a_role_is_beside_its_budget_and_one_above_it_is_named() -> None:
    files = {"tests/core/unit/a.py": 150.0, "tests/core/ledger/b.py": 50.0, "tests/node/unit/c.py": 10.0}
    budgets = {"tests/core": 99, "checks and start-up": 50, "tests/webhook": 5}

    lines, above = by_role({BUILD: 900.0}, files, total_s=1_210.0, unit_s=2.0, budgets=budgets)

    assert lines[1:] == [
        "      50 of   50  checks and start-up",
        "     100 of   99  tests/core",
        "       5 of  any  tests/node",
    ]
    assert [sentence.partition(" took ")[0] for sentence in above] == ["tests/core"]


def test_each_role_has_a_budget_of_processors() -> None:
    roles = {f"tests/{folder.parent.parent.name}" for folder in (ROOT / "tests").glob("*/*/test_*.py")}

    assert processor_budgets().keys() == {*roles, REST}


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
