"""Frozen values without the price of dataclasses."""

from __future__ import annotations

import pytest

from timekeeper.edge.value import value


@value
class Point:
    """A place."""

    x: int
    y: int

    def sum(self) -> int:
        return self.x + self.y


@value
class Other:
    """Another kind of thing with the same fields."""

    x: int
    y: int


def test_a_value_is_what_its_fields_are() -> None:
    assert Point(1, 2) == Point(x=1, y=2)
    assert hash(Point(1, 2)) == hash(Point(1, y=2))
    assert Point(1, 2) not in (Point(1, 3), Other(1, 2), (1, 2))
    assert Point(1, 2).sum() == 3
    assert repr(Point(1, 2)) == "Point(x=1, y=2)"
    match Point(1, 2):
        case Point(x, 2):
            assert x == 1
        case _:
            pytest.fail("fields are matched in their order")


def test_a_value_never_changes() -> None:
    point = Point(1, 2)

    with pytest.raises(AttributeError, match=r"Point\.x is fixed"):
        point.x = 3  # type: ignore[misc] # this is what must fail
    with pytest.raises(AttributeError, match=r"Point\.x is fixed"):
        del point.x
    with pytest.raises(AttributeError):
        object.__setattr__(point, "z", 3)


@pytest.mark.parametrize(
    ("given", "named"), [((1,), {}), ((1, 2, 3), {}), ((1, 2), {"x": 1}), ((1,), {"z": 2})]
)
def test_every_field_is_given_once(given: tuple[int, ...], named: dict[str, int]) -> None:
    with pytest.raises(TypeError, match="Point takes each of x, y once"):
        Point(*given, **named)


def test_a_value_may_have_no_field() -> None:
    @value
    class Nothing:
        """Nothing."""

    assert Nothing() == Nothing()
