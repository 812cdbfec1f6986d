"""The dashboard in headless Chromium: every page in both colour schemes, on a large and a small window."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.support.browser import LARGE, SMALL, chromium, visiting
from tests.support.tls import Tls
from tests.timekeeper.dashboards import ADMIN
from tests.timekeeper.pictures import IMAGES, sizes, take
from tests.timekeeper.stage import LONG_PAGES, stage

pytestmark = pytest.mark.make_all("a browser, beyond one scene")

PAGES = {
    "/": "Budgets",
    "/namespaces/team-a": "team-a",
    "/namespaces/sandbox": "sandbox",
    "/namespaces/team-b": "team-b",
    "/groups": "Groups",
    "/groups/lab": "Group lab",
    "/map": "Nodes and cards",
    "/map?node=gpu-1": "Node gpu-1",
    "/nodes/gpu-1": "Charges on node gpu-1",
    "/waiting": "Waiting pods",
    "/waste?group=namespace%2Cowner": "Waste",
    "/map?model=H100": "Nodes and cards",
    "/waste?label=app": "Waste",
    "/costs": "Costs of 2026-11",
    "/costs?group=day": "Costs of 2026-11",
    "/decisions": "Decisions",
    "/months": "Closed months",
    "/would": "What enforcement would have done",
    "/pods/team-a/train-9": "Pod/train-9",
    "/pods/team-b/sweep-1": "Pod/sweep-1",
    "/pods/team-a/team-a-18": "Pod/team-a-18",
    "/namespaces/NOT%20VALID": "This address is not right",
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as launched:
        yield launched


# cells that are hidden, reach beyond the window, or contain what does
_OUTSIDE = """() => [...document.querySelectorAll("main :is(thead, tbody) :is(th, td)")].filter((cell) => {
  if (cell.closest("details:not([open])")) return false;
  const small = innerWidth < 640 && cell.closest("thead"), box = cell.getBoundingClientRect();
  const inside = box.left >= 0 && box.right <= innerWidth && cell.scrollWidth <= cell.offsetWidth;
  return !small && !(cell.checkVisibility() && inside);
}).map((cell) => `not in the window: ${cell.textContent.slice(0, 40)}`)"""


# cards of the map whose edge has less than 3 to 1 against the list (WCAG 2.2, 1.4.11), and states that colour
# alone tells apart
_FAINT = """() => {
  const part = (value) => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const light = (colour) => colour.match(/[\\d.]+/g).slice(0, 3).map((value) => part(value / 255))
    .reduce((sum, value, at) => sum + value * [0.2126, 0.7152, 0.0722][at], 0);
  const ratio = (one, other) => (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
  const ground = light(getComputedStyle(document.querySelector(".table")).backgroundColor);
  const faint = [...document.querySelectorAll(".card-frame, .slot")]
    .filter((edge) => ratio(light(getComputedStyle(edge).stroke), ground) < 3);
  const looks = (kind) => [...document.querySelectorAll(`.cards .card-frame.${kind}`)].map((card) =>
    getComputedStyle(card).strokeDasharray + (card.parentNode.querySelector(".card-cross") !== null));
  const kinds = new Set(["sound", "cordoned", "faulty"].map((kind) => looks(kind)[0]));
  return [...faint.map((edge) => `faint: ${edge.outerHTML}`), ...(kinds.size === 3 ? [] : ["colour alone"])];
}"""


def test_every_page_is_sound_with_the_longest_names_in_both_colours_and_sizes(
    browser: Browser, tmp_path: Path
) -> None:
    """Nothing is wider than the window, and every column of every list lies in it."""
    (tmp_path / "tls").mkdir()
    found: dict[tuple[str, str], list[str]] = {}
    with stage(tmp_path) as made, made.served(Tls(tmp_path / "tls").server()) as url:
        visitor = visiting(browser, url)
        visitor.open("/login")
        found["/login", "light"] = visitor.findings()
        visitor.log_in(ADMIN)
        for path in (*PAGES, *LONG_PAGES):
            visitor.open(path)
            heading = visitor.page.get_by_role("heading", level=1)
            expect(heading).to_have_text(PAGES.get(path, re.compile("..")))
            for scheme, size in (("light", LARGE), ("dark", SMALL)):
                visitor.show(scheme, size)
                wide = ["too wide"] if visitor.is_wider_than_its_window() else []
                found[path, scheme] = [*wide, *visitor.page.evaluate(_OUTSIDE)]
                if path == "/map":
                    found[path, scheme] += visitor.page.evaluate(_FAINT)
                if path in PAGES:
                    found[path, scheme] += [*visitor.findings(), *visitor.unsaid()]
        visitor.page.context.close()

    faults = [fault for fault in visitor.faults if "status of 400" not in fault]  # the last page is refused
    assert (faults, {where: wrong for where, wrong in found.items() if wrong}) == ([], {})


def test_a_link_of_another_site_is_opened_in_the_session(browser: Browser, url: str) -> None:
    visitor = visiting(browser, url)
    page = visitor.page
    link = f'<!doctype html><title>t</title><a href="{url}/waste?span=day">Look</a>'
    page.route("https://other.test/**", lambda route: route.fulfill(body=link, content_type="text/html"))

    page.goto("https://other.test/")
    page.get_by_role("link", name="Look").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Log in")
    visitor.log_in(ADMIN)
    page.goto("https://other.test/")
    page.get_by_role("link", name="Look").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Waste")
    expect(page).to_have_url(f"{url}/waste?span=day")
    page.context.close()


def test_a_screen_reader_says_that_the_timekeeper_does_not_answer(browser: Browser, url: str) -> None:
    visitor = visiting(browser, url)
    page = visitor.page
    page.clock.install()
    visitor.log_in(ADMIN)
    status = page.get_by_role("status")
    live = page.locator("#live-switch")
    expect(status).to_have_text("")
    first = page.evaluate("document.querySelector('main').firstElementChild.role")
    assert first == "status"  # over the title

    live.click()
    page.clock.run_for(61_000)
    page.route("**/*", lambda route: route.abort())
    with page.expect_event("requestfailed"):
        live.click()
    expect(status).to_have_text("")  # one page may be missed
    page.clock.run_for(5_000)
    expect(status).to_have_text("No answer since 10:01; figures of 10:00. Pods run on, and nothing is lost.")
    expect(live).to_have_text("No answer")
    expect(live).to_have_accessible_name("No answer. Live updates are on")
    assert visitor.findings() == []
    page.unroute("**/*")
    page.clock.run_for(5_000)
    expect(status).to_have_text("")
    expect(live).to_have_text("Live")
    page.context.close()


def test_the_keyboard_reaches_everything_in_the_order_of_the_page(browser: Browser, url: str) -> None:
    visitor = visiting(browser, url, "light", SMALL)
    visitor.page.clock.install(time=0)
    visitor.page.clock.pause_at(1)  # no page loads itself again meanwhile
    visitor.log_in(ADMIN)
    missed = {}
    for path in PAGES:
        visitor.open(path)
        missed[path] = visitor.missed_by_the_keyboard()
    visitor.open("/waste")
    visitor.page.keyboard.press("Tab")
    visitor.page.keyboard.press("Enter")  # the link over the header
    visitor.page.keyboard.press("Tab")
    expect(visitor.page.get_by_role("textbox", name="Namespace")).to_be_focused()
    visitor.page.context.close()

    assert {path: each for path, each in missed.items() if each} == {}


def test_a_lead_passes_on_by_the_keyboard_and_reads_what_is_wrong(browser: Browser, url: str) -> None:
    visitor = visiting(browser, url, "dark", SMALL)
    page = visitor.page
    visitor.log_in(ADMIN)
    visitor.open("/groups/lab")

    def fill(namespace: str) -> None:
        page.get_by_role("combobox", name="Namespace of the group").fill(namespace)
        page.get_by_role("textbox", name="GPU-hours").fill("1.25")
        page.get_by_role("textbox", name="Reason").fill("sprint 4")
        page.keyboard.press("Enter")

    fill("team-c")
    fault = page.get_by_role("combobox", name="Namespace of the group")
    expect(fault).to_have_accessible_description("team-c is not in group lab")
    expect(fault).to_be_focused()
    assert visitor.findings() == []
    fill("team-b")
    expect(page.get_by_role("status").filter(has_text="The amount is passed on")).to_be_visible()
    row = (
        page.get_by_role("table", name="What namespaces received")
        .get_by_role("row")
        .filter(has_text="team-b")
    )
    expect(row).to_contain_text("1.25")
    assert visitor.findings() == []
    page.context.close()
    assert [each for each in visitor.faults if "status of 409" not in each] == []


def test_colours_are_chosen_and_remembered_and_a_visitor_logs_out(browser: Browser, url: str) -> None:
    visitor = visiting(browser, url, "light")
    page = visitor.page
    visitor.log_in(ADMIN)
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)

    page.get_by_role("button", name="Use dark colours").click()
    dark = page.evaluate(ground)
    visitor.open("/waste")

    assert (page.evaluate(ground), dark == light) == (dark, False)
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Log in")
    visitor.open("/")
    expect(page.get_by_role("heading", level=1)).to_have_text("Log in")
    page.context.close()
    assert visitor.faults == []


@pytest.mark.soak
def test_each_picture_of_the_docs_can_be_taken_anew(browser: Browser, tmp_path: Path) -> None:
    take(tmp_path, browser)

    assert sizes(IMAGES) == sizes(tmp_path)
