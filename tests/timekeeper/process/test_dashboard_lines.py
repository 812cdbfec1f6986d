"""Figures over time on the dashboard's pages: cards by the hour, costs by day, a pod's use by the hour."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import insert
from werkzeug.test import Client

from tests.timekeeper.books import Run, days
from tests.timekeeper.dashboards import READER, URL, Dashboards, log_in
from tests.timekeeper.worlds import DAY, HOUR, T0, Json
from timekeeper.store.engine.schema import CARD_HOURS

# of each hour so many before T0: known minutes, and of each model held, free and waiting, in cards
HOURS = {
    400: (60, {"A100": (9, 9, 9)}),  # longer ago than two weeks
    30: (60, {"A100": (4, 4, 0), "H100": (0, 8, 0)}),
    29: (60, {"A100": (8, 0, 0), "H100": (2, 6, 0), "": (0, 0, 3)}),
    2: (15, {"A100": (1, 7, 0)}),
    1: (60, {"A100": (2, 6, 1), "H100": (8, 0, 0)}),
}


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Dashboards]:
    found = Dashboards(tmp_path)
    rows = [
        {"hour_ms": T0 - at * HOUR, "model": model, "known_ms": minutes * 60_000}
        | {
            name: cards * minutes * 60_000_000
            for name, cards in zip(("held", "free", "waiting"), those, strict=True)
        }
        for at, (minutes, models) in HOURS.items()
        for model, those in {"": (0, 0, 0), **models}.items()
    ]
    with found.books.store.writing() as connection:
        connection.execute(insert(CARD_HOURS), rows)
    yield found
    found.close()


@pytest.fixture
def visitor(made: Dashboards) -> Client:
    client = made.client()
    log_in(client)
    return client


def page(client: Client, path: str) -> str:
    answer = client.get(path, base_url=URL)
    assert answer.status_code == 200, answer.text
    return answer.text


def table(text: str, name: str) -> list[list[str]]:
    """The rows of a chart's table, and above them its headings."""
    part = text.partition(f"{name} as a table")[2].partition("</details>")[0]
    rows = (re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in part.split("</tr>"))
    cells = [[" ".join(re.sub("<[^>]+>", " ", cell).split()) for cell in row] for row in rows]
    return [row for row in cells if row]


def lines(text: str) -> list[tuple[str, int]]:
    """Each part of a line: its class, and how many points it has."""
    return [
        (kind, points.count(","))
        for kind, points in re.findall('<polyline class="(.*?)" points="(.*?)"', text)
    ]


CARDS = [
    ["From", "Held", "Free", "Waited for", "Known"],
    ["2026-11-20 09:00Z", "10", "6", "1", "all of it"],
    ["2026-11-20 08:00Z", "1", "7", "0", "15m0s"],
    ["2026-11-19 05:00Z", "10", "6", "3", "all of it"],
    ["2026-11-19 04:00Z", "4", "12", "0", "all of it"],
]


@pytest.mark.parametrize("path", ["/", "/map"])
def test_cards_of_two_weeks_are_drawn_by_the_hour_and_what_is_not_known_is_a_gap(
    visitor: Client, path: str
) -> None:
    """Also where no extender has posted a map."""
    text = page(visitor, path)

    assert table(text, "Cards by the hour") == CARDS
    assert lines(text) == [(kind, 4) for kind in ("left", "left", "free", "free", "ahead", "ahead")]
    assert "at last 10 held, 6 free, 1 waited for, with 1 gap." in text


def test_the_map_shows_the_cards_of_a_model(visitor: Client) -> None:
    text = page(visitor, "/map?model=H100")

    assert table(text, "Cards of H100 by the hour") == [
        CARDS[0],
        ["2026-11-20 09:00Z", "8", "0", "0", "all of it"],
        ["2026-11-20 08:00Z", "0", "0", "0", "15m0s"],
        ["2026-11-19 05:00Z", "2", "6", "0", "all of it"],
        ["2026-11-19 04:00Z", "0", "8", "0", "all of it"],
    ]
    assert re.findall('href="(/map[^"]*)">(?:<wbr>|[^<])*</a>', text.partition("</details>")[2])[:2] == [
        "/map",
        "/map?model=A100",
    ]


def test_who_may_read_one_namespace_sees_the_cards_on_its_map(made: Dashboards) -> None:
    made.books.reviews.denied |= {("reader", "get", "sessions", "")}
    client = made.client()
    log_in(client, READER)

    assert table(page(client, "/map?namespace=team-a"), "Cards by the hour") == CARDS


def test_nothing_is_drawn_before_anything_was_counted(tmp_path: Path) -> None:
    found = Dashboards(tmp_path)
    client = found.client()
    log_in(client)

    assert not any("polyline" in page(client, path) for path in ("/", "/map"))
    found.close()


def spent(made: Dashboards, entry: str) -> None:
    """Four GPU-hours 9 days ago, and two a week ago."""
    made.books.entries(("team-a", entry, 0))
    for at, hours in ((9, 4), (7, 2)):
        start = T0 - at * DAY
        made.books.write(Run(f"p{at}", started_ms=start, posted=days(start, start + hours * HOUR)))


@pytest.mark.parametrize(
    ("price", "unit", "last"), [("\nprice: 2.5", "USD", "5.00 USD"), ("", "GPU-hours", "2.00 GPU-hours")]
)
def test_costs_are_drawn_by_day_and_a_day_without_a_charge_cost_nothing(
    made: Dashboards, visitor: Client, price: str, unit: str, last: str
) -> None:
    if price:
        made.books.entries(("_settings", "currency: USD", 0))
    spent(made, f"gpuHours: 100\nperiod: month{price}")

    text = page(visitor, "/costs?group=day")

    assert f"From 2026-11-11 00:00Z to 2026-11-14 00:00Z, at last {last}." in text
    assert lines(text) == [("left", 6)]
    heights = re.findall(r"[\d.]+,([\d.]+)", re.findall('points="(.*?)"', text)[0])
    assert heights == ["14", "14", "240", "240", "127", "127"]  # four, none, two
    assert f"</span>{unit}</li>" in text
    assert "polyline" not in page(visitor, "/costs")


def test_a_pods_use_is_drawn_by_the_hour_and_hours_without_a_measurement_are_a_gap(
    made: Dashboards, visitor: Client
) -> None:
    """Where an agent and a sidecar measured, the agent's figures count; two weeks are shown."""
    begin = T0 - 8 * HOUR
    made.books.write(Run("u", name="p", requested=2_000, started_ms=begin, posted=days(begin, T0)))
    for hour, source, covered, used in (
        (0, "node", HOUR, 1_500),
        (1, "tenant", HOUR, 2_000),
        (1, "node", HOUR // 2, 1_000),
        (4, "tenant", HOUR, 0),
        (-14 * 24, "node", HOUR, 2_000),
    ):
        made.books.used("u", begin + hour * HOUR, source, covered, covered * used)

    text = page(visitor, "/pods/team-a/p")

    assert table(text, "Measured use by the hour") == [
        ["From", "Held while measured, GPU-hours", "Used, GPU-hours"],
        ["2026-11-20 06:00Z", "2.00", "0.00"],
        ["2026-11-20 03:00Z", "1.00", "0.50"],
        ["2026-11-20 02:00Z", "2.00", "1.50"],
    ]
    assert lines(text) == [("left", 4), ("left", 2), ("ahead", 4), ("ahead", 2)]
    assert "Use by the hour" not in page(visitor, "/pods/team-a/another")


def test_waste_is_by_label_and_in_money(made: Dashboards, visitor: Client) -> None:
    """Of 10 GPU-hours at 2, then 3 USD, 4 were measured, and a quarter of these used; a label is no pod's."""
    begin = T0 - DAY
    made.books.entries(
        ("_settings", "currency: USD", 0),
        ("team-a", "gpuHours: 100\nperiod: month\nprice: 2", 0),
        ("team-b", "gpuHours: 100\nperiod: month\nprice: 3", 0),
    )
    labelled: Json = {"labels": (("cost-center", "cc-1"),)}
    for namespace, label, measured in (("team-a", labelled, 4), ("team-b", labelled, 2), ("team-b", {}, 1)):
        uid = f"{namespace}-{measured}"
        made.books.write(
            Run(uid, namespace, started_ms=begin, posted=days(begin, begin + 10 * HOUR), **label)
        )
        for hour in range(measured):
            made.books.used(uid, begin + hour * HOUR, "node", HOUR, 250 * HOUR)

    text = page(visitor, "/waste?label=cost-center")

    rows = text.partition("<tbody>")[2].partition("</tbody>")[0].split("</tr>")
    found = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in rows]
    cells = [[" ".join(re.sub("<[^>]+>", " ", cell).split()) for cell in row] for row in found if row]
    # 3 of 10 hours at 2, and 1.5 of 10 at 3: of what 20 and 30 USD paid for
    assert cells == [
        ["cc- 1", "25%", "20.00", "6.00", "1.50", "4.50", "10.50 USD"],
        ["\u2013", "25%", "10.00", "1.00", "0.25", "0.75", "2.25 USD"],
    ]
    assert ">12.75 USD<" in text
    assert "Label cost-center" in text
    assert "USD" not in page(visitor, "/waste?span=day&namespace=team-c")
