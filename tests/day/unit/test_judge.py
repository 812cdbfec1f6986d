"""What a day's judge complains of, and what it lets pass."""

from dataclasses import replace

import pytest

from tests.day.judge import Record, complaints, growth, outside, ratio, stayed

END = 400.0
TIMES = [float(at) for at in range(0, 401, 5)]


def line(begin: float, per_s: float = 0.0) -> list[tuple[float, float]]:
    return [(at, begin + per_s * at) for at in TIMES]


def flat() -> Record:
    return Record(
        END,
        sizes={"webhook": line(100.0)},
        files={"webhook": line(20.0)},
        threads={"webhook": line(4.0)},
        calls={"create": line(10.0)},
        left={"waiting": 0},
    )


def test_a_flat_day_is_without_complaint() -> None:
    assert complaints(flat()) == []


@pytest.mark.parametrize(("per_s", "grown"), [(0.02, 0.0186915887), (-0.02, -0.0215053763), (0.0, 0.0)])
def test_growth_is_the_slope_of_the_span_by_the_mean_of_the_span(per_s: float, grown: float) -> None:
    assert growth(line(100.0, per_s), 300, 400) == pytest.approx(grown)


def test_growth_before_the_span_does_not_count_and_noise_does_not_either() -> None:
    warm = [(at, 50 + min(at, 300.0)) for at in TIMES]
    noisy = [(at, 100 + (7 if at % 10 else -7)) for at in TIMES]

    assert growth(warm, 301, 400) == pytest.approx(0)
    assert abs(growth(noisy, 300, 400) or 0) < 0.01


def test_a_size_that_grows_by_more_than_a_hundredth_is_named() -> None:
    grown = replace(flat(), sizes={"webhook": line(100.0, 0.012), "timekeeper": line(100.0, 0.009)})

    assert complaints(grown) == ["webhook: its size grew by 1.2% in the last quarter"]


def test_a_process_that_was_not_sampled_is_named() -> None:
    short = [(at, 100.0) for at in TIMES if at < 330]

    assert complaints(replace(flat(), sizes={"x": short})) == [
        "x: too few samples of its size in the last quarter"
    ]
    assert complaints(replace(flat(), files={"x": []})) == ["x: no samples of its files"]


def test_files_and_threads_that_stay_are_named_and_those_that_come_and_go_are_not() -> None:
    steps = [(at, 20.0 + at // 100) for at in TIMES]  # one more each quarter
    burst = [(at, 20.0 + (30 if at % 20 else 0)) for at in TIMES]
    begun = [(at, 5.0 if 150 < at < 160 else 20.0) for at in TIMES]  # replaced in the second quarter

    assert stayed(steps, END) == 1
    assert complaints(replace(flat(), threads={"x": steps})) == ["x: 1 threads more than before"]
    assert complaints(replace(flat(), files={"x": steps})) == ["x: 1 files more than before"]
    assert complaints(replace(flat(), files={"x": burst}, threads={"x": burst})) == []
    assert complaints(replace(flat(), files={"x": begun}, threads={"x": begun})) == []


def test_how_long_calls_took_is_told_without_those_of_faults_and_is_no_complaint() -> None:
    slower = [(at, 10.0 if at < 205 else 11.2) for at in TIMES]

    assert ratio(slower, END) == pytest.approx(1.12)
    assert ratio([], END) is None
    assert complaints(replace(flat(), calls={"x": slower})) == []
    assert outside(line(1.0), [(0, 395)]) == [(400.0, 1.0)]


def test_rows_that_are_left_are_named() -> None:
    assert complaints(replace(flat(), left={"waiting": 3, "bindings": 0})) == ["waiting: 3 rows are left"]
