"""Which tests `make test` may try once more."""

from tests.run import MAX_TRIED_AGAIN, tried_again


def test_whole_files_of_a_few_tests_that_wait_are_tried_again() -> None:
    failed = ["tests/a/cluster/test_x.py::test_1", "tests/a/cluster/test_x.py::test_2[a::b]"]

    assert tried_again([*failed, "tests/a/ledger/test_y.py::test_3"]) == [
        "tests/a/cluster/test_x.py",
        "tests/a/ledger/test_y.py",
    ]


def test_nothing_is_tried_again_beside_a_pure_test_that_failed() -> None:
    assert tried_again(["tests/a/unit/test_x.py::test_1", "tests/a/cluster/test_y.py::test_2"]) == []


def test_many_files_that_fail_are_no_accident() -> None:
    files = [f"tests/a/process/test_{number}.py" for number in range(MAX_TRIED_AGAIN + 1)]

    assert tried_again(f"{file}::test" for file in files) == []
    assert tried_again(f"{file}::test" for file in files[1:]) == files[1:]
