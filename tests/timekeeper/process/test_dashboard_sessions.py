"""The dashboard's login for a browser that has a session, ended or of another account."""

import html
import re

import pytest
from werkzeug.test import Client

from tests.timekeeper.dashboards import ADMIN, READER, URL, Dashboards, form, log_in, status


def test_after_its_session_has_ended_a_visitor_logs_in_again(dashboards: Dashboards, visitor: Client) -> None:
    log_in(visitor)
    dashboards.books.reviews.tokens.pop(ADMIN)
    dashboards.books.clock.turn(61_000)  # a review of the token is known for a minute
    assert status(visitor, "/waste?group=pod") == (303, "/login?next=%2Fwaste%3Fgroup%3Dpod&ended=1")

    answer = log_in(visitor, READER, onward="/waste?group=pod&namespace=team-a")

    assert (answer.status_code, answer.headers["Location"]) == (303, "/waste?group=pod&namespace=team-a")
    assert status(visitor, "/waste?group=pod&namespace=team-a") == (200, "")


@pytest.mark.parametrize("path", ["/namespaces/team-b", "/decisions?namespace=team-b&kind=refused"])
def test_a_page_that_an_account_may_not_see_leads_to_another_login_and_back(
    visitor: Client, path: str
) -> None:
    log_in(visitor, READER)
    refused = visitor.get(path, base_url=URL)
    (where,) = re.findall(r'<a href="(/login[^"]*)">', refused.text)
    page = visitor.get(html.unescape(where), base_url=URL)
    (onward,) = re.findall(r'name="next" value="([^"]*)"', page.text)

    answer = log_in(visitor, ADMIN, onward=html.unescape(onward))

    assert (refused.status_code, page.status_code) == (403, 200)
    assert (answer.status_code, answer.headers["Location"]) == (303, path)
    assert status(visitor, path) == (200, "")


def test_a_form_of_another_session_logs_no_one_in(dashboards: Dashboards, visitor: Client) -> None:
    other = dashboards.client()
    log_in(other, READER)
    data = {"token": ADMIN, "next": "/", **form(other, "/login")}

    assert visitor.post("/login", base_url=URL, data=data).status_code == 400
    log_in(visitor, READER)
    assert visitor.post("/login", base_url=URL, data=data).status_code == 400
    assert status(visitor, "/") == (303, "/namespaces/team-a")


def test_a_link_of_another_site_leads_to_its_page_or_to_the_login_and_back(visitor: Client) -> None:
    elsewhere = {"Sec-Fetch-Site": "cross-site"}  # a browser sends no cookie with it

    arriving = visitor.get("/waste?group=pod", base_url=URL, headers=elsewhere)
    onward = arriving.headers["Refresh"].removeprefix("0; url=")

    assert (arriving.status_code, "Set-Cookie" in arriving.headers) == (200, False)
    assert onward == "/login?next=%2Fwaste%3Fgroup%3Dpod&arrived=1"
    assert f'<a href="{html.escape(onward)}">' in arriving.text
    assert arriving.headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert 'name="next" value="/waste?group=pod"' in visitor.get(onward, base_url=URL).text
    log_in(visitor)
    assert status(visitor, onward) == (303, "/waste?group=pod")
    assert status(visitor, "/login?next=//evil.test&arrived=1") == (303, "/")


def test_behind_a_proxy_with_a_host_name_of_its_own_a_visitor_logs_in_and_stays_there(
    dashboards: Dashboards,
) -> None:
    """Host and forwarded headers are those of the proxy; nothing that is answered names a host."""
    proxied = {
        "X-Forwarded-Proto": "https",
        "X-Forwarded-Host": "gpus.example",
        "X-Forwarded-For": "192.0.2.1",
    }
    url, browser = "https://gpus.example", dashboards.client()
    page = browser.get("/login?next=/map", base_url=url, headers=proxied)
    (field,) = re.findall(r'name="form_token" value="([^"]*)"', page.text)
    data = {"token": ADMIN, "next": "/map", "form_token": field}

    answer = browser.post(
        "/login", base_url=url, data=data, headers=proxied | {"Origin": url, "Sec-Fetch-Site": "same-origin"}
    )

    assert (answer.status_code, answer.headers["Location"]) == (303, "/map")
    assert "domain" not in answer.headers["Set-Cookie"].lower()
    assert browser.get("/map", base_url=url, headers=proxied).status_code == 200
    data["form_token"] = field
    elsewhere = proxied | {"Origin": "https://other.example", "Sec-Fetch-Site": "same-site"}
    assert browser.post("/login", base_url=url, data=data, headers=elsewhere).status_code == 400
