"""The comparison of what operations cost, and the counters that it compares."""

from collections.abc import Callable

from tests.bench.cost.child import tried
from tests.bench.cost.comparison import Row, named, rows, table
from tests.bench.cost.counters import counted, counts, perf_fault

HERE = {"tick": {"bytecodes": 1_101.0, "C calls": 110.0, "CPU": 0.5}, "bind": {"bytecodes": 7.0}}


def test_a_figure_more_than_a_tenth_above_the_base_is_named_and_one_at_a_tenth_is_not() -> None:
    base = {"tick": {"bytecodes": 1_000.0, "C calls": 100.0, "CPU": 1.0}, "bind": {"bytecodes": 7.0}}

    compared = list(rows(HERE, base))

    assert compared == [
        Row("tick", "bytecodes", 1_101, 1_000),
        Row("tick", "C calls", 110, 100),
        Row("tick", "CPU", 0.5, 1.0),
        Row("bind", "bytecodes", 7, 7),
    ]
    assert table(compared, "v0.1.0") == "\n".join(
        (
            "operation             figure                here        v0.1.0   ratio",
            "tick                  bytecodes            1,101         1,000   1.101  WORSE",
            "tick                  C calls              110.0         100.0   1.100",
            "tick                  CPU                  0.500         1.000   0.500",
            "bind                  bytecodes            7.000         7.000   1.000",
        )
    )
    assert named(compared, "v0.1.0") == (
        "worse: tick takes 1,101 bytecodes, v0.1.0 1,000 (1.10 times as much)"
    )


def test_an_operation_that_cannot_be_run_there_is_named_as_worse() -> None:
    base = {"tick": {"fault": "ModuleNotFoundError: No module named 'x'"}}

    compared = list(rows(HERE, base))

    assert [row.fault for row in compared] == [
        "cannot be run there: ModuleNotFoundError: No module named 'x'",
        "cannot be run there: not counted there",
    ]
    assert table(compared, "old").splitlines()[1] == f"tick                  {compared[0].fault}"
    assert named(compared, "old").splitlines() == [
        "worse: tick cannot be run there: ModuleNotFoundError: No module named 'x'",
        "worse: bind cannot be run there: not counted there",
    ]


def test_an_operation_that_does_not_run_here_is_named() -> None:
    (broken,) = rows({"bind": {"fault": "KeyError: 'x'"}}, {"bind": {"bytecodes": 7.0}})

    assert broken.is_worse
    assert named([broken], "old") == "worse: bind cannot be run here: KeyError: 'x'"


def test_a_figure_that_only_one_tree_has_is_shown_without_a_ratio() -> None:
    (alone,) = rows({"bind": {"instructions": 70.0}}, {"bind": {"bytecodes": 7.0}})

    assert (alone.ratio, alone.is_worse) == (None, False)
    assert table([alone], "old").splitlines()[1].split() == ["bind", "instructions", "70.0", "-"]


def test_each_counter_sees_work_that_is_added() -> None:
    def work(loops: int, calls: int, kib: int) -> Callable[[], Callable[[], object]]:
        def call() -> None:
            for _ in range(loops):
                pass
            for _ in range(calls):
                id(None)
            bytes(1024 * kib)

        return lambda: call

    def least(loops: int, calls: int, kib: int) -> dict[str, float]:
        """Threads that other tests have left may allocate memory meanwhile, which adds to the peak."""
        rounds = [counts(work(loops, calls, kib)) for _ in range(5)]
        return {name: min(each[name] for each in rounds) for name in rounds[0]}

    less = least(100, 100, 100)
    looped, called, filled = (least(*more) for more in ((150, 100, 100), (100, 150, 100), (100, 100, 150)))

    assert looped["bytecodes"] >= less["bytecodes"] + 2 * 50  # how many for each depends on the version
    assert called["C calls"] == less["C calls"] + 50
    assert filled["peak KiB"] == less["peak KiB"] + 50
    assert least(100, 100, 100) == less


def test_a_fault_is_a_sentence_and_ends_nothing() -> None:
    def fails() -> object:
        raise KeyError("a-name")

    assert tried(fails) == {"fault": "KeyError: 'a-name'"}
    assert tried(lambda: 7) == 7


def test_perfs_answer_is_a_number_or_the_reason_why_there_is_none() -> None:
    assert counted("# started on a day\n\n123456,,instructions:u,9,100.00,,\n") == 123_456
    assert counted("<not supported>,,instructions:u,0,100.00,,\n") is None
    assert perf_fault("a-perf-that-is-not-here") == (
        "a-perf-that-is-not-here cannot be run: No such file or directory"
    )
