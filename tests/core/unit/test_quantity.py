"""Quantities: every exact integral spelling of Kubernetes is read, everything else is refused."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timekeeper.core.quantity import LARGEST, integral


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("50", 50),
        ("0", 0),
        ("-3", -3),
        ("+7", 7),
        ("8k", 8000),
        ("1e3", 1000),
        ("1E3", 1000),
        ("4Ki", 4096),
        ("1.5k", 1500),
        ("50.0", 50),
        ("5000m", 5),
        ("1e-1e", None),
        (".5k", 500),
        ("1M", 1_000_000),
        ("2Gi", 2 * 2**30),
        ("10e-1", 1),
        ("9223372036854775807", LARGEST),
        (64, 64),
    ],
)
def test_every_exact_integral_form_is_read(text: object, value: int | None) -> None:
    assert integral(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        " 5",
        "5 ",
        "0.5",
        "500m",
        "1n",
        "NaN",
        "nan",
        "inf",
        "1_0",
        "\u0665",
        "1e999999",
        "1e99",
        "9223372036854775808",
        "5%",
        "0x10",
        "1KI",
        "--1",
        ".",
        "e3",
        "k",
        "5\n",
        None,
        True,
        1.0,
        [],
        {},
        2**63,
    ],
)
def test_everything_else_is_no_whole_number(text: object) -> None:
    assert integral(text) is None


@given(st.text(max_size=80))
def test_arbitrary_text_never_raises(text: str) -> None:
    assert integral(text) is None or abs(integral(text) or 0) <= LARGEST


@given(
    st.integers(-(10**6), 10**6),
    st.sampled_from([("k", 1000), ("Ki", 1024), ("M", 10**6), ("m", Fraction(1, 1000))]),
)
def test_a_suffix_multiplies_exactly(number: int, suffix: tuple[str, Fraction]) -> None:
    exact = number * Fraction(suffix[1])

    assert integral(f"{number}{suffix[0]}") == (int(exact) if exact.denominator == 1 else None)
