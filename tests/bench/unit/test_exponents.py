"""How exponents are fitted."""

import pytest

from tests.bench.exponents import exponent


@pytest.mark.parametrize(("figures", "slope"), [((3, 3, 3), 0), ((3, 6, 12), 1), ((3, 12, 48), 2)])
def test_an_exponent_is_the_slope_of_the_logarithms(figures: tuple[float, ...], slope: float) -> None:
    assert exponent((10, 20, 40), figures) == pytest.approx(slope)
