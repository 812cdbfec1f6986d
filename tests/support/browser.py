"""Headless Chromium, and a window of it that looks for faults of pages."""

import itertools
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from deploy.local.limits import LONGEST_S

LARGE, SMALL = {"width": 1280, "height": 860}, {"width": 390, "height": 780}
AXE = files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")
SERIOUS = ("serious", "critical")
_MOST_MS = 1000 * LONGEST_S
expect.set_options(timeout=_MOST_MS)


@contextmanager
def chromium(*flags: str) -> Iterator[Browser]:
    """The browser while the context lasts. The test is skipped without Debian's package."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("Debian's package chromium is not installed (`make all` as root installs it)")
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", *flags], timeout=_MOST_MS
        )
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


_NAMED = ("link", "button", "textbox", "combobox", "image", "table", "region", "navigation")
_HEADINGS = ("columnheader", "rowheader")
_LANDMARKS = ("banner", "main", "contentinfo")


def _role(node: dict[str, Any]) -> str:
    return str(node["role"]["value"])


def _name(node: dict[str, Any]) -> str:
    return str(node.get("name", {}).get("value", "")).strip()


def _level(node: dict[str, Any]) -> int:
    return next(int(each["value"]["value"]) for each in node["properties"] if each["name"] == "level")


def _under(node: dict[str, Any], by_id: dict[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for each in node.get("childIds", ()):
        if each in by_id:
            yield by_id[each]
            yield from _under(by_id[each], by_id)


class Visitor:
    """A browser window. ``faults``: errors of scripts, and messages of the console."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.url, self.faults = url, list[str]()
        context.set_default_timeout(_MOST_MS)
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

    def show(self, scheme: Any, size: Any) -> None:
        """The same page in these colours, in a window of this size."""
        self.page.emulate_media(color_scheme=scheme)
        self.page.set_viewport_size(size)

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

    def unsaid(self) -> list[str]:
        """What a screen reader cannot say, by the browser's accessibility tree: controls, tables and regions
        without a name, tables without headings, headings that skip a level, a page without its landmarks."""
        session = self.page.context.new_cdp_session(self.page)
        nodes = session.send("Accessibility.getFullAXTree")["nodes"]
        session.detach()
        by_id = {each["nodeId"]: each for each in nodes}
        said = [each for each in nodes if not each["ignored"]]
        roles = [_role(each) for each in said]
        found = [
            f"{_role(each)} without a name" for each in said if _role(each) in _NAMED and not _name(each)
        ]
        for table in (each for each in said if _role(each) == "table"):
            inside = {_role(each) for each in _under(table, by_id)}
            found += [f"{_name(table)}: no {each}" for each in _HEADINGS if each not in inside]
        levels = [_level(each) for each in said if _role(each) == "heading"]
        found += [f"h{b} after h{a}" for a, b in itertools.pairwise([0, *levels]) if b > a + 1]
        return found + [f"{roles.count(each)} of {each}" for each in _LANDMARKS if roles.count(each) != 1]

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


def visiting(
    browser: Browser, url: str, scheme: Any = "light", size: Any = None, zone: str | None = None
) -> Visitor:
    """A window of a new visitor. ``zone``: its time zone; None: this machine's."""
    viewport: Any = size or LARGE
    context = browser.new_context(
        ignore_https_errors=True,
        color_scheme=scheme,
        viewport=viewport,
        reduced_motion="reduce",
        timezone_id=zone,
    )
    return Visitor(context, url)
