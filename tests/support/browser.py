"""Headless Chromium, and a window of it that looks for faults of pages."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

LARGE, SMALL = {"width": 1280, "height": 860}, {"width": 390, "height": 780}
AXE = files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")
SERIOUS = ("serious", "critical")


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser while the context lasts. The test is skipped without Debian's package."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("Debian's package chromium is not installed (BURSAR_APT=1 as root installs it)")
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield made
        made.close()


# What a pointer can operate or scroll.
_COUNT_STOPS = """() => {
  const all = "a[href], button, input:not([type=hidden]), select, summary, [tabindex='0']";
  window.stops = [...document.querySelectorAll(all)].filter((each) => each.checkVisibility());
  const scrolls = (each) => each.checkVisibility() && getComputedStyle(each).overflowX === "auto"
    && each.scrollWidth > each.clientWidth;
  const scrolled = [...document.querySelectorAll("main *")].filter(scrolls);
  window.unreachable = scrolled.filter((each) => !window.stops.includes(each)).length;
  return window.stops.length + window.unreachable;
}"""
_NEXT_STOP = """() => {
  const at = document.activeElement, wanted = window.stops.shift();
  const outline = getComputedStyle(at);
  const named = (each) => each ? each.outerHTML.slice(0, 120) : "a part that scrolls";
  if (at !== wanted) return [`${named(wanted)} is not reached, but ${named(at)}`];
  return outline.outlineStyle === "none" ? [`${named(at)} shows no focus`] : [];
}"""


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

    def missed_by_the_keyboard(self) -> list[str]:
        """What can be operated but not reached by Tab, in the order of the page, and what shows no focus; the
        page must not change meanwhile."""
        count = self.page.evaluate(_COUNT_STOPS)
        found = []
        for _ in range(count):
            self.page.keyboard.press("Tab")
            found += self.page.evaluate(_NEXT_STOP)
        return found

    def is_wider_than_its_window(self) -> bool:
        """True if the page must be scrolled sideways."""
        return bool(self.page.evaluate("document.documentElement.scrollWidth > window.innerWidth"))


def visiting(browser: Browser, url: str, scheme: Any = "light", size: Any = None) -> Visitor:
    viewport: Any = size or LARGE
    context = browser.new_context(
        ignore_https_errors=True, color_scheme=scheme, viewport=viewport, reduced_motion="reduce"
    )
    return Visitor(context, url)
