"""A login by OpenID Connect in headless Chromium: the provider is a process, and bursar.test is the
dashboard's address for the browser alone."""

import itertools
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.browser import Visitor, chromium, visiting
from tests.support.tls import Tls
from tests.timekeeper.dashboards import URL, Dashboards
from tests.timekeeper.oidc_logins import OidcProvider, dashboard
from timekeeper.dashboard.sessions import own_path

pytestmark = pytest.mark.make_all("a browser")

PAGE = f"{URL}/namespaces/team-a"
BUTTON = "Log in with your organization's account"


@pytest.fixture(scope="module")
def dashboards(
    tmp_path_factory: pytest.TempPathFactory, running_provider: OidcProvider
) -> Iterator[Dashboards]:
    """Whoever is in the group research may read everything."""
    made = dashboard(tmp_path_factory.mktemp("dashboards"), running_provider)
    made.books.entries(("team-a", "gpuHours: 400", 0))
    made.books.reviews.readers = frozenset({"oidc:research"})
    yield made
    made.close()


@pytest.fixture(scope="module")
def browser(dashboards: Dashboards, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    tls = Tls(tmp_path_factory.mktemp("tls")).server()
    with (
        dashboards.served(tls) as address,
        chromium(f"--host-resolver-rules=MAP bursar.test {urlsplit(address).netloc}") as launched,
    ):
        yield launched


@pytest.fixture
def visitor(browser: Browser) -> Iterator[Visitor]:
    made = visiting(browser, URL)
    yield made
    made.page.context.close()


def log_in(page: Page) -> None:
    page.goto(PAGE)
    expect(page.get_by_role("heading", level=1)).to_have_text("Log in")
    page.get_by_role("link", name=BUTTON).click()


def test_a_person_logs_in_reads_what_their_groups_may_and_logs_out(
    visitor: Visitor, provider: OidcProvider
) -> None:
    provider.user(preferred_username="ada", groups=["research"])
    page, asked = visitor.page, list[str]()
    page.on("request", lambda request: asked.append(request.url))

    log_in(page)

    expect(page).to_have_url(PAGE)
    expect(page.get_by_role("heading", level=1)).to_have_text("team-a")
    expect(page.get_by_role("contentinfo")).to_contain_text("oidc:ada")
    (begun,) = (parse_qs(urlsplit(each).query) for each in asked if each.startswith(f"{provider.url}/auth"))
    assert (begun["code_challenge_method"], begun["response_type"]) == (["S256"], ["code"])
    (ended,) = (each for each in asked if each.startswith(f"{URL}/login/callback?"))
    assert parse_qs(urlsplit(ended).query)["state"] == begun["state"]
    cookies = {each["name"]: each for each in page.context.cookies(URL)}
    assert "__Host-bursar-login" not in cookies
    session = cookies["bursar-session"]
    assert (session["httpOnly"], session["secure"], session["sameSite"]) == (True, True, "Strict")
    assert page.evaluate("document.cookie") == ""
    assert visitor.faults == []

    page.get_by_role("button", name="Log out").click()
    page.wait_for_url(f"{provider.url}/session?client_id=bursar")
    # as somebody who has copied it
    page.context.add_cookies([{"name": "bursar-session", "value": session["value"], "url": URL}])
    page.goto(PAGE)
    expect(page.get_by_text("Your session has ended")).to_be_visible()


def test_a_person_of_no_such_group_sees_nothing_and_who_may_give_the_right(
    visitor: Visitor, provider: OidcProvider
) -> None:
    provider.user(preferred_username="bob", groups=["sales"])

    log_in(visitor.page)

    expect(visitor.page).to_have_url(PAGE)
    expect(visitor.page.get_by_role("heading", level=1)).to_have_text("Not allowed")
    expect(visitor.page.get_by_text("oidc:bob may not get budgets")).to_be_visible()
    assert visitor.findings() == []


def test_a_login_begun_in_another_window_is_not_finished_in_this_one(
    browser: Browser, visitor: Visitor, provider: OidcProvider
) -> None:
    provider.user(preferred_username="ada", groups=["research"])
    other = visiting(browser, URL)
    led: list[str] = []
    other.page.on("request", lambda request: led.append(request.url))
    other.page.goto(f"{URL}/login/oidc")
    other.page.context.close()

    visitor.page.goto(next(each for each in led if "/login/callback?" in each))

    expect(visitor.page.get_by_role("alert")).to_contain_text("this browser has begun no such login")


def test_no_path_that_a_login_goes_on_with_is_another_place_for_a_browser(browser: Browser) -> None:
    """Chromium's own reading of addresses, of every short text of the signs that matter to it."""
    page = visiting(browser, URL).page
    signs = ("/", "\\", "\t", "\n", " ", ":", "@", ".", "?", "x")
    asked = [
        "".join(each) + "evil.test" for count in range(5) for each in itertools.product(signs, repeat=count)
    ]
    asked += ["https://evil.test", "javascript:alert(1)", "//evil.test", "/\x00/evil.test", "/\x7f/evil.test"]
    elsewhere = """([paths, here]) => paths.filter((each) => {
      try { return new URL(each, here + "/login").origin !== here; } catch { return true; }
    })"""

    assert len(page.evaluate(elsewhere, [asked, URL])) > 500
    assert page.evaluate(elsewhere, [[own_path(each) for each in asked], URL]) == []
    assert own_path("/waste?group=pod&below=5#rows") == "/waste?group=pod&below=5#rows"
    page.context.close()
