"""The exponent of the power that lies closest to measured figures."""

import pytest

from tests.bench.growth import exponent, table

SIZES = (500, 1_000, 2_000, 20_000)


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 2.0])
def test_figures_that_are_a_power_of_the_size_have_its_exponent(power: float) -> None:
    assert exponent(SIZES, [0.003 * size**power for size in SIZES]) == pytest.approx(power)


def test_of_figures_that_vary_the_exponent_is_that_of_least_squares_on_logarithms() -> None:
    # slopes 1 and 0 between sizes that are equally far apart: the line through the first and the last
    assert exponent((1, 10, 100), (1, 10, 10)) == pytest.approx(0.5)


@pytest.mark.parametrize(("sizes", "figures"), [((), ()), ((5,), (1,)), ((5, 5), (1, 2)), ((1, 2), (0, 1))])
def test_nothing_is_said_of_less_than_two_sizes_or_a_figure_of_zero(
    sizes: tuple[int, ...], figures: tuple[float, ...]
) -> None:
    assert exponent(sizes, figures) is None


def test_a_table_has_a_line_for_each_operation_with_its_figures_by_size() -> None:
    made = table("nodes", {2_000: {"bind": 2.0, "tick": 40.0}, 1_000: {"bind": 2.0, "tick": 10.0}})
    assert [line.split() for line in made.splitlines()] == [
        ["nodes", "1,000", "2,000", "exponent"],
        ["bind", "2.000", "2.000", "0.00"],
        ["tick", "10", "40", "2.00"],
    ]
