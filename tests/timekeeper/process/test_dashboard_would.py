"""The dashboard's page of what enforcement would have done."""

import pytest
from werkzeug.test import Client

from tests.timekeeper.dashboards import URL, Dashboards, log_in
from tests.timekeeper.process.test_dashboard_waste import texts
from tests.timekeeper.worlds import T0
from timekeeper.accounts.would import VerdictWord
from timekeeper.store import would
from timekeeper.store.would import WouldRow


def judged(uid: str, verdict: VerdictWord, rule: str = "", sentence: str = "") -> WouldRow:
    return WouldRow(uid, verdict, "team-a", f"pod-{uid}", rule, sentence, T0, T0)


@pytest.fixture
def dashboards(dashboards: Dashboards) -> Dashboards:
    dashboards.books.entries(("team-a", "gpuHours: 1\nmode: meter", 0), ("team-b", "gpuHours: 1", 0))
    return dashboards


def visit(dashboards: Dashboards, *rows: WouldRow, path: str = "/would") -> str:
    with dashboards.books.store.writing() as connection:
        would.record(connection, rows)
    client: Client = dashboards.client()
    log_in(client)
    return client.get(path, base_url=URL).text


def test_each_verdict_of_a_week_is_a_row_with_its_part_of_the_new_pods(dashboards: Dashboards) -> None:
    page = visit(
        dashboards,
        judged("a", "admitted"),
        judged("b", "refused", "host-pid", "<b>not so</b>"),
        judged("c", "evicted", sentence="spent"),
    )

    rows = [texts(each, "t[hd]") for each in page.partition("<tbody>")[2].split("</tr>")[:2]]
    assert rows == [
        ["2026-W47", "team-a", "evicted", "\u2013", "1", "pod-c", "spent"],
        ["2026-W47", "team-a", "refused", "host-pid", "1 of 2", "pod-b", "&lt;b&gt;not so&lt;/b&gt;"],
    ]
    assert "Exempt users" in page


def test_without_such_pods_the_page_says_what_was_judged(dashboards: Dashboards) -> None:
    assert "No pod was judged yet" in visit(dashboards)
    assert "1 new pod would have been admitted as it is." in visit(dashboards, judged("a", "admitted"))


def test_an_enforced_namespace_is_named_as_such(dashboards: Dashboards) -> None:
    page = visit(dashboards, path="/would?namespace=team-b")
    assert "team-b: not metered now, so nothing is shown here" in page
