"""Times on the dashboard's pages: in one form, in the budgets' zone, with or without scripts."""

import re
from collections.abc import Iterator
from datetime import datetime

import pytest

from tests.timekeeper.dashboards import NO_TIME, URL, Dashboards, filled, log_in

PAGES = (
    "/",
    "/namespaces/team-a",
    "/groups",
    "/groups/lab",
    "/map",
    "/nodes/gpu-1",
    "/waiting",
    "/waste",
    "/costs",
    "/months",
    "/months/2026-11",
    "/would",
    "/decisions",
    "/pods/team-a/train-9",
    "/pods/team-a/Job/train",
)
A_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}[0-9:.]*(?:Z| UTC|[+-][0-9:]{5})?")
FORM = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}(:[0-9]{2})?\+0[12]:00")


@pytest.fixture(scope="module")
def berlin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboards]:
    made = filled(tmp_path_factory.mktemp("berlin"))
    made.books.entries(("_settings", "timeZone: Europe/Berlin", 0))
    yield made
    made.close()


@pytest.mark.parametrize("path", PAGES)
def test_every_time_of_a_page_has_one_form_and_is_of_the_budgets_zone(path: str, berlin: Dashboards) -> None:
    client = berlin.client()
    log_in(client)

    page = client.get(path, base_url=URL).text

    page = re.sub("</?span>", "", page)
    elements = re.findall(r'<time datetime="([^"]+)">([^<]+)</time>', page)
    assert len(elements) == page.count("<time")
    for iso, text in elements:
        assert abs(datetime.fromisoformat(text) - datetime.fromisoformat(iso)).total_seconds() < 60, text
    shown = re.sub(r"<[^>]*>", " ", page)
    found = [each for each in A_TIME.findall(shown) if not each.startswith(NO_TIME[:7])]
    assert [each for each in found if not FORM.fullmatch(each)] == []
    assert found
    assert "Times are those of Europe/Berlin" in shown


@pytest.mark.parametrize("path", ["/pods/team-a/train-9", "/nodes/gpu-1"])
def test_stories_and_nodes_have_seconds(path: str, berlin: Dashboards) -> None:
    client = berlin.client()
    log_in(client)

    page = re.sub("</?span>", "", client.get(path, base_url=URL).text)
    times = re.findall(r"<time datetime[^>]*>([^<]+)</time>", page)

    assert any(time.count(":") == 3 for time in times), times


def test_a_burn_down_has_the_days_of_the_zone(berlin: Dashboards) -> None:
    client = berlin.client()
    log_in(client)

    page = client.get("/namespaces/team-a", base_url=URL).text

    assert re.findall(r'class="tick[^>]*text-anchor="start"[^>]*>([^<]+)<', page)[0] == "2026-11-01"
