"""What `make test`, `make all` and `make coverage` choose, and what a run tells of its processor time."""

from pathlib import Path

import pytest
from _pytest.mark.expression import Expression

from tests.run import COVERED
from tests.support import processor_time
from tests.support.compositions import ALL, REST, ROOT, TEST, ignored
from tests.support.processor_time import BUILD, Kept, beside, by_role, by_tier, dearest, kind_of
from tests.support.touched import ROLES, touches


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


@pytest.mark.parametrize(
    ("marks", "runs"),
    [
        ({"unit"}, TEST),
        ({"process", "make_all"}, REST),
        ({"cluster"}, REST),
        ({"cluster", "make_test"}, TEST),
        ({"cluster", "make_test", "make_all"}, REST),
        ({"cluster", "make_test", "soak"}, None),
        ({"unit", "soak"}, None),
    ],
)
def test_a_test_runs_in_make_test_or_is_of_what_make_all_adds(marks: set[str], runs: str | None) -> None:
    assert [expression for expression in (TEST, REST) if chooses(expression, marks)] == [runs][: bool(runs)]
    assert chooses(ALL, marks) is bool(runs)


ONLY_ALL = ("webhook/cluster/test_taint.py", "bench/process/test_cost.py")
ONLY_TEST = ("webhook/cluster/test_bypass.py", "core/unit/test_hold.py")
PARTLY = ("timekeeper/ledger/test_split.py", "timekeeper/process/test_backup.py")


def test_files_without_a_test_of_the_run_are_not_imported() -> None:
    test, rest = set(ignored(TEST)), set(ignored(REST))

    assert ignored(ALL) == []
    assert not test & rest
    assert {f"--ignore=tests/{file}" for file in ONLY_ALL} <= test
    assert {f"--ignore=tests/{file}" for file in ONLY_TEST} <= rest
    assert not {f"--ignore=tests/{file}" for file in PARTLY} & (test | rest)


@pytest.mark.parametrize(
    ("changed", "file", "is_touched"),
    [
        ("tests/node/unit/test_a.py", "tests/node/unit/test_a.py", True),
        ("tests/node/unit/test_a.py", "tests/node/unit/test_b.py", False),
        ("tests/node/worlds.py", "tests/node/unit/test_b.py", True),
        ("sidecar/node/agent.py", "tests/kubelet/cluster/test_nri.py", True),
        ("sidecar/node/agent.py", "tests/sidecar/unit/test_spool.py", False),
        ("sidecar/spool.py", "tests/sidecar/unit/test_spool.py", True),
        ("timekeeper/cli/main.py", "tests/cli/unit/test_top.py", True),
        ("timekeeper/cli/main.py", "tests/timekeeper/ledger/test_split.py", False),
        ("LICENSE", "tests/docs/unit/test_index.py", False),
    ],
)
def test_a_change_touches_the_files_of_tests_that_try_it(changed: str, file: str, is_touched: bool) -> None:
    assert touches({changed}, file) is is_touched


def test_each_role_of_tests_and_each_folder_of_the_product_is_in_the_table_of_what_is_touched() -> None:
    starts = [start for start, _ in ROLES]

    assert all((ROOT / start).is_dir() for start in starts)
    assert all((ROOT / "tests" / role).is_dir() for _, roles in ROLES for role in roles)
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    assert {start.partition("/")[0] for start in starts} >= folders


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


def test_units_by_role_stand_beside_those_of_the_run_before() -> None:
    files = {"tests/core/unit/a.py": 150.0, "tests/core/ledger/b.py": 50.0, "tests/node/unit/c.py": 10.0}

    units = by_role({BUILD: 900.0}, files, total_s=1_210.0, unit_s=2.0)

    assert units == {processor_time.REST: 50.0, "tests/core": 100.0, "tests/node": 5.0}
    assert beside(units, {}) == [
        "== units by role",
        "      50  checks and start-up",
        "     100  tests/core",
        "       5  tests/node",
    ]
    assert beside({"tests/core": 100.0, "tests/new": 1.0}, {"tests/core": 99.0}) == [
        "== units by role, and in the run before",
        "     100      99  tests/core",
        "       1  tests/new",
    ]


def test_the_units_of_a_run_are_kept_for_the_next_one_of_its_name(tmp_path: Path) -> None:
    kept, other = Kept(tmp_path / "units", "test"), Kept(tmp_path / "units", "rest")

    assert (kept.replace({"a": 1.0}), other.replace({"a": 7.0})) == ({}, {})
    assert (kept.replace({"a": 2.0}), other.replace({})) == ({"a": 1.0}, {"a": 7.0})


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
