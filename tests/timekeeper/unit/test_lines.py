"""Figures over time: what is not known is a gap, in the picture and in the table."""

from zoneinfo import ZoneInfo

from timekeeper.dashboard.charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, LineChart, line_chart

HOUR = 3_600_000
LINES = {"left": "held", "free": "free"}
# two hours, one that is not known, one of which a quarter is
STEPS = [
    (0, HOUR, HOUR, (1_000, 3_000)),
    (HOUR, 2 * HOUR, HOUR, (4_000, 0)),
    (3 * HOUR, 4 * HOUR, HOUR // 4, (2_000, 2_000)),
]


def drawn(**more: ZoneInfo) -> LineChart:
    found = line_chart("Cards", LINES, STEPS, 1_000, lambda milli: f"{milli / 1_000:g}", **more)
    assert found is not None
    return found


def places(points: str) -> list[tuple[float, float]]:
    """Hour and cards of each point."""
    pairs = (map(float, pair.split(",")) for pair in points.split())
    return [
        (
            round(4 * (x - LEFT) / (WIDTH - LEFT - RIGHT), 1),
            round(4 * (HEIGHT - BOTTOM - y) / (HEIGHT - TOP - BOTTOM), 1),
        )
        for x, y in pairs
    ]


def test_a_line_goes_by_steps_and_begins_anew_after_what_is_not_known() -> None:
    parts = {(kind, name): [places(points) for points in found] for kind, name, found in drawn().lines}

    assert parts == {
        ("left", "held"): [[(0, 1), (1, 1), (1, 4), (2, 4)], [(3, 2), (4, 2)]],
        ("free", "free"): [[(0, 3), (1, 3), (1, 0), (2, 0)], [(3, 2), (4, 2)]],
    }


def test_the_table_has_what_is_known_and_how_much_of_a_time_is() -> None:
    assert drawn().rows == (
        (0, "", ("1", "3")),
        (HOUR, "", ("4", "0")),
        (3 * HOUR, "15m0s", ("2", "2")),
    )
    assert drawn().sentence == (
        "From 1970-01-01 00:00Z to 1970-01-01 04:00Z, at last 2 held, 2 free, with 1 gap."
    )


def test_the_grid_is_of_round_numbers_and_of_the_zone() -> None:
    found = drawn(zone=ZoneInfo("Asia/Kolkata"))

    assert [tick.text for tick in found.up] == ["0", "1", "2", "3", "4"]
    assert [tick.text for tick in found.across][:2] == ["01-01 05:30", "01-01 06:30"]


def test_nothing_is_drawn_of_nothing_and_zero_is_a_line() -> None:
    assert line_chart("Cards", LINES, [], 1_000, str) is None
    zero = line_chart("Cards", {"left": "held"}, [(0, HOUR, HOUR, (0,))], 1_000, str)
    assert zero is not None
    assert zero.lines[0][2] == (f"{LEFT},{HEIGHT - BOTTOM} {WIDTH - RIGHT},{HEIGHT - BOTTOM}",)
