"""The dashboard in headless Chromium: every page in both colour schemes, on a large and a small window."""

import shutil
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.support.tls import Tls
from tests.timekeeper.dashboards import ADMIN, READER, Dashboards

PAGES = {
    "/": "Budgets",
    "/namespaces/team-a": "team-a",
    "/namespaces/sandbox": "sandbox",
    "/groups": "Groups",
    "/groups/lab": "Group lab",
    "/map": "Nodes and cards",
    "/map?node=gpu-1": "Node gpu-1",
    "/waiting": "Waiting pods",
    "/waste?group=namespace%2Cowner": "Waste",
    "/decisions": "Decisions",
    "/pods/team-a/train-9": "Pod/train-9",
    "/namespaces/NOT%20VALID": "This address is not right",
}
LARGE, SMALL = {"width": 1280, "height": 860}, {"width": 390, "height": 780}
AXE = files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")
SERIOUS = ("serious", "critical")


@pytest.fixture(scope="module")
def dashboards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboards]:
    made = Dashboards(tmp_path_factory.mktemp("dashboards"))
    made.fill()
    yield made
    made.close()


@pytest.fixture(scope="module")
def url(dashboards: Dashboards, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with dashboards.served(Tls(tmp_path_factory.mktemp("tls")).server()) as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("Debian's package chromium is not installed (BURSAR_APT=1 as root installs it)")
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield made
        made.close()


class Visitor:
    """A browser window. ``faults``: errors of scripts, and messages of the console."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.url, self.faults = url, list[str]()
        self.page: Page = context.new_page()
        self.page.on("console", lambda message: self.faults.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))

    def log_in(self, token: str) -> None:
        """By the form, with the keyboard alone."""
        self.page.goto(f"{self.url}/login")
        self.page.get_by_label("Token of a service account").focus()
        self.page.keyboard.insert_text(token)
        for _ in range(2):  # over the command that can be scrolled, to the button
            self.page.keyboard.press("Tab")
        self.page.keyboard.press("Enter")
        self.page.wait_for_url(lambda address: "/login" not in address)

    def open(self, path: str) -> None:
        """Load a page."""
        self.page.goto(f"{self.url}{path}")

    def findings(self) -> list[str]:
        """What axe-core calls serious or critical. It is evaluated by the debugger, which no policy of the
        page stops."""
        self.page.evaluate(AXE)
        found: dict[str, Any] = self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        return [
            f"{each['id']}: {each['nodes'][0]['html'][:200]} {each['nodes'][0]['failureSummary']}"
            for each in found["violations"]
            if each["impact"] in SERIOUS
        ]

    def is_wider_than_its_window(self) -> bool:
        """True if the page must be scrolled sideways."""
        return bool(self.page.evaluate("document.documentElement.scrollWidth > window.innerWidth"))


def visiting(browser: Browser, url: str, scheme: Any = "light", size: Any = None) -> Visitor:
    viewport: Any = size or LARGE
    context = browser.new_context(
        ignore_https_errors=True, color_scheme=scheme, viewport=viewport, reduced_motion="reduce"
    )
    return Visitor(context, url)


@pytest.mark.parametrize(("scheme", "size"), [("light", LARGE), ("dark", SMALL)])
def test_every_page_is_sound_in_both_colours_and_sizes(
    browser: Browser, url: str, scheme: str, size: dict[str, int]
) -> None:
    visitor = visiting(browser, url, scheme, size)
    visitor.open("/login")
    found = {"/login": visitor.findings()}
    visitor.log_in(ADMIN)
    for path, heading in PAGES.items():
        visitor.open(path)
        expect(visitor.page.get_by_role("heading", level=1)).to_have_text(heading)
        found[path] = [*visitor.findings(), *(["too wide"] if visitor.is_wider_than_its_window() else [])]
    visitor.page.context.close()

    expected = [each for each in visitor.faults if "status of 400" not in each]  # the last page is refused
    assert (expected, {path: each for path, each in found.items() if each}) == ([], {})


def test_a_page_shows_what_changes_and_keeps_focus_and_open_parts(
    browser: Browser, dashboards: Dashboards, url: str
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
        assert dashboards.books.post("/v1/grants", grant, **{"Idempotency-Key": key}).status_code == 200

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

    dashboards.books.reviews.tokens.pop(READER)
    dashboards.books.clock.turn(61_000)
    page.clock.run_for(5_000)
    expect(page.get_by_text("Your session has ended")).to_be_visible()
    page.context.close()
    assert visitor.faults == []


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
