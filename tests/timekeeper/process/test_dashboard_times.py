"""Times on the dashboard's pages, in a browser of another time zone and without scripts."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import Browser, expect

from tests.support.browser import SMALL, Visitor, chromium, visiting
from tests.timekeeper.dashboards import ADMIN, NO_TIME, URL, Dashboards, log_in

pytestmark = pytest.mark.make_all("a browser")

ZONE = "America/New_York"
NOW = datetime(2026, 11, 20, 10, tzinfo=UTC)  # that of the dashboards' ledger
PAGES = (
    "/",
    "/namespaces/team-a",
    "/groups",
    "/groups/lab",
    "/map",
    "/waiting",
    "/waste",
    "/costs",
    "/estimate",
    "/months",
    "/months/2026-11",
    "/would",
    "/decisions",
    "/pods/team-a/train-9",
    "/pods/team-a/Job/train",
)
UTC_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}[0-9:]*(?:Z| UTC)")
SHOWN = """Array.from(document.querySelectorAll("time"), (each) =>
  [each.dateTime, each.classList.contains("exact"), each.textContent, each.title])"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as launched:
        yield launched


@pytest.fixture
def visitor(browser: Browser, url: str) -> Iterator[Visitor]:
    """Logged in, with a clock that is wrong by years and stands still."""
    made = visiting(browser, url, size=SMALL, zone=ZONE)
    made.page.clock.install(time=0)
    made.page.clock.pause_at(1)
    made.log_in(ADMIN)
    yield made
    made.page.context.close()


def in_words(at: datetime, now: datetime) -> str:
    """The largest unit of which there are two, or one hour or minute; what is left of it does not count."""
    lengths = (("year", 365, 2), ("month", 30, 2), ("day", 1, 2))
    units = [(name, timedelta(days=days), least) for name, days, least in lengths]
    units += [("hour", timedelta(hours=1), 1), ("minute", timedelta(minutes=1), 1)]
    away = abs(at - now)
    for name, length, least in units:
        if away >= least * length:
            count = away // length
            text = f"{count} {name}{'s' * (count > 1)}"
            return f"in {text}" if at > now else f"{text} ago"
    return "in less than a minute" if at > now else "less than a minute ago"


def exact(at: datetime, form: str) -> str:
    """In the visitor's zone."""
    local = at.astimezone(ZoneInfo(ZONE))
    return f"{local:{form}} {local:%Z}"


def expected(iso: str, is_sentence: bool, now: datetime) -> tuple[str, str]:
    """Text and title of a time."""
    at = datetime.fromisoformat(iso)
    if is_sentence:
        return exact(at, "%Y-%m-%d %H:%M"), in_words(at, now)
    return in_words(at, now), exact(at, "%Y-%m-%d %H:%M:%S")


def shown(visitor: Visitor) -> list[tuple[str, bool, str, str]]:
    """Each time of the page, but a tenant's text that is none."""
    found = visitor.page.evaluate(SHOWN)
    return [(iso, is_sentence, *rest) for iso, is_sentence, *rest in found if not iso.startswith(NO_TIME[:7])]


def test_every_time_of_every_page_is_in_words_with_the_exact_one_in_the_visitors_zone(
    visitor: Visitor,
) -> None:
    counts = {}
    for path in PAGES:
        visitor.open(path)
        times = shown(visitor)
        assert [(path, *each[2:]) for each in times] == [
            (path, *expected(iso, is_sentence, NOW)) for iso, is_sentence, *_ in times
        ]
        counts[path] = sum(not is_sentence for _, is_sentence, *_ in times)
        left = UTC_TIME.findall(visitor.page.inner_text("body"))
        assert [each for each in left if not each.startswith(NO_TIME[:7])] == [], path
        expect(visitor.page.locator("#times-zone")).to_have_text(f"Times are those of {ZONE}")

    assert visitor.faults == []
    assert min(counts[path] for path in ("/", "/namespaces/team-a", "/waiting", "/decisions")) > 3


def test_words_follow_the_time_though_the_page_is_not_loaded_again(visitor: Visitor) -> None:
    visitor.page.get_by_role("button", name="Live updates are on").click()
    visitor.open("/waiting")

    visitor.page.clock.run_for(7_260_000)

    later = NOW + timedelta(seconds=7_260)
    times = shown(visitor)
    assert [each[2:] for each in times] == [
        expected(iso, is_sentence, later) for iso, is_sentence, *_ in times
    ]


def test_a_page_that_loads_itself_again_is_left_as_it_is_while_its_words_are_the_same(
    visitor: Visitor,
) -> None:
    visitor.open("/waiting")
    visitor.page.evaluate("document.querySelector('#live').firstElementChild.isOld = true")

    with visitor.page.expect_response("**/waiting"):
        visitor.page.clock.run_for(5_000)

    visitor.page.evaluate("fetch('/static/theme.js')")  # what the page does with an answer comes before
    assert visitor.page.evaluate("document.querySelector('#live').firstElementChild.isOld") is True


def test_a_visitor_without_a_pointer_shows_the_exact_times_of_this_and_the_next_pages(
    visitor: Visitor,
) -> None:
    visitor.open("/waiting")
    visitor.page.get_by_role("button", name="Show exact times").press("Enter")

    for path in ("/waiting", "/decisions"):
        visitor.open(path)
        for iso, _, text, title in shown(visitor):
            assert (text, title) == expected(iso, True, NOW)
    visitor.page.get_by_role("button", name="Show relative times").press("Enter")
    assert any("ago" in text for _, _, text, _ in shown(visitor))


def test_without_scripts_a_page_shows_the_exact_time_in_utc(full: Dashboards) -> None:
    client = full.client()
    log_in(client)
    for path in PAGES:
        page = client.get(path, base_url=URL).text
        times = re.findall(r'<time(?: class="exact")? datetime="([^"]+)">([^<]+)</time>', page)
        assert len(times) == page.count("<time")
        assert "Times are UTC" in page
        for iso, text in times:
            assert text.replace(" ", "T")[:16] == iso[:16]
            assert text.endswith(("Z", " UTC"))
