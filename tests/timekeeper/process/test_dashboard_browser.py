"""The dashboard in headless Chromium: a page that is looked at while something changes. All else that needs a
browser is in `test_dashboard_pages`."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.support.browser import chromium, visiting
from tests.timekeeper.dashboards import READER, Dashboards
from tests.timekeeper.pictures import IMAGES, PICTURES, sizes


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as launched:
        yield launched


def test_a_page_shows_what_changes_and_keeps_focus_and_open_parts(
    browser: Browser, full: Dashboards, url: str
) -> None:
    visitor = visiting(browser, url)
    page = visitor.page
    page.clock.install()
    visitor.log_in(READER)
    expect(page).to_have_url(f"{url}/namespaces/team-a")
    page.get_by_text("The same as a table").click()
    page.get_by_role("link", name="infer-1").focus()
    grants = page.get_by_role("table", name="The newest first").last.get_by_role("row")
    before = grants.count()

    def give(key: str) -> None:
        grant = {"subject": "team-a", "gpuHours": "3", "reason": f"given {key}"}
        assert full.books.post("/v1/grants", grant, **{"Idempotency-Key": key}).status_code == 200

    give("first")
    page.clock.run_for(5_000)
    expect(page.get_by_role("cell", name="given first", exact=True)).to_be_visible()
    expect(grants).to_have_count(before + 1)
    expect(page.get_by_role("link", name="infer-1")).to_be_focused()
    expect(page.get_by_role("table", name="Use over time, GPU-hours")).to_be_visible()

    page.get_by_role("button", name="Live updates are on").click()
    give("second")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.clock.run_for(60_000)
    page.evaluate("fetch('/static/theme.js')")  # a request that is seen follows any that the page made
    assert [each.rpartition("/")[2] for each in asked] == ["theme.js"]
    expect(page.get_by_role("cell", name="given second", exact=True)).to_have_count(0)
    page.get_by_role("button", name="Live updates are off").click()
    expect(page.get_by_role("cell", name="given second", exact=True)).to_be_visible()

    full.books.reviews.tokens.pop(READER)
    full.books.clock.turn(61_000)
    page.clock.run_for(5_000)
    expect(page.get_by_text("Your session has ended")).to_be_visible()
    page.context.close()
    assert visitor.faults == []


def test_each_picture_of_the_docs_has_the_size_that_it_is_taken_with() -> None:
    assert sizes(IMAGES) == {name: (picture.width, picture.height) for name, picture in PICTURES.items()}
