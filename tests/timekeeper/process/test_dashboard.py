"""The dashboard without a browser: who logs in, what each visitor sees, and what no page contains."""

import html
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import delete, insert, select, update
from werkzeug.test import Client, TestResponse

from tests.timekeeper.books import Run, days
from tests.timekeeper.dashboards import (
    ADMIN,
    HOSTILE,
    READER,
    URL,
    Dashboards,
    filled,
    form,
    log_in,
    status,
    waits,
)
from tests.timekeeper.worlds import DAY, GPU, HOUR, MINUTE, T0, token, user_status
from timekeeper.api.sheets import BUDGETS as BUDGET_SHEET
from timekeeper.api.sheets import DECISIONS, HELD, NODE_CHARGES, WAITING
from timekeeper.api.sheets.sheet import Sheet
from timekeeper.core.budgets.modes import EFFECTS
from timekeeper.core.decisions import HELD as HELD_KIND
from timekeeper.core.decisions import Decision, DecisionRun
from timekeeper.core.texts import NOT_PLACED
from timekeeper.dashboard.app import with_dashboard
from timekeeper.store import decisions
from timekeeper.store.engine.schema import ENTRY_ERRORS, PULSE, SESSIONS

PAGES = (
    "/",
    "/namespaces/team-a",
    "/namespaces/team-b",
    "/namespaces/sandbox",
    "/groups",
    "/groups/lab",
    "/map",
    "/map?node=gpu-1",
    "/nodes/gpu-1",
    "/waiting",
    "/waste",
    "/waste?group=pod&span=month",
    "/costs",
    "/costs?namespace=team-a&group=day",
    "/would",
    "/decisions",
    "/decisions?kind=refused&namespace=team-a",
    "/pods/team-a/train-9",
    "/pods/team-a/Job/train",
)


BUDGETS = ("team-a", "team-b", "team-c", "vision")


@pytest.fixture
def dashboards(tmp_path: Path) -> Iterator[Dashboards]:
    with closing(filled(tmp_path)) as made:
        yield made


def test_a_login_gives_a_cookie_that_scripts_and_other_sites_cannot_use(visitor: Client) -> None:
    answer = log_in(visitor, onward="/waste?group=pod")

    assert (answer.status_code, answer.headers["Location"]) == (303, "/waste?group=pod")
    (cookie,) = answer.headers.getlist("Set-Cookie")
    assert cookie.startswith(f"bursar-session={ADMIN};")
    assert {"Secure", "HttpOnly", "Path=/", "SameSite=Strict"} <= set(cookie.split("; "))
    assert status(visitor, "/") == (200, "")


def test_a_page_without_a_session_leads_to_the_login_and_back(visitor: Client) -> None:
    for path in PAGES:
        code, where = status(visitor, path)
        assert code == 303
        assert where.startswith("/login")
    assert status(visitor, "/waste?group=pod")[1] == "/login?next=%2Fwaste%3Fgroup%3Dpod"


@pytest.mark.parametrize(
    "onward",
    ["//evil.test/", "https://evil.test", "/\\evil.test", "/\t/evil.test", "javascript:alert(1)", ""],
)
def test_no_address_leads_away_from_this_server(visitor: Client, onward: str) -> None:
    assert log_in(visitor, onward=onward).headers["Location"] == "/"


def test_a_login_that_no_page_of_ours_sent_is_refused(visitor: Client, dashboards: Dashboards) -> None:
    other = form(dashboards.client(), "/login")
    fields = form(visitor, "/login")
    sent = {"token": ADMIN, "next": "/"}

    def answered(given: dict[str, str], **headers: str) -> int:
        return visitor.post("/login", base_url=URL, data=sent | given, headers=headers).status_code

    assert answered({}) == 400
    assert answered(other) == 400
    assert answered(fields, **{"Sec-Fetch-Site": "cross-site"}) == 400
    assert answered(fields, **{"Sec-Fetch-Site": "same-origin"}) == 303


@pytest.mark.parametrize(
    "bearer", ["", "no token", token("unknown"), token("old", T0 - 1_000_000), "a" * 4000]
)
def test_a_token_that_the_api_server_does_not_know_is_no_session(visitor: Client, bearer: str) -> None:
    answer = log_in(visitor, bearer)

    assert answer.status_code == 400
    assert 'role="alert"' in answer.text
    assert "Set-Cookie" not in answer.headers
    assert status(visitor, "/")[0] == 303


def test_a_session_ends_with_its_token_and_by_logging_out(dashboards: Dashboards, visitor: Client) -> None:
    log_in(visitor)
    assert visitor.post("/logout", base_url=URL).status_code == 400
    assert status(visitor, "/")[0] == 200

    dashboards.books.reviews.tokens.pop(ADMIN)
    dashboards.books.clock.turn(61_000)
    assert status(visitor, "/groups") == (303, "/login?next=%2Fgroups&ended=1")

    dashboards.books.reviews.tokens[ADMIN] = user_status("admin")
    dashboards.books.clock.turn(61_000)
    left = visitor.post("/logout", base_url=URL, data=form(visitor, "/"))
    assert (left.status_code, left.headers["Location"]) == (303, "/login")
    assert status(visitor, "/")[0] == 303


def test_without_a_right_to_all_namespaces_a_visitor_sees_its_own_one(visitor: Client) -> None:
    log_in(visitor, READER)

    assert status(visitor, "/") == (303, "/namespaces/team-a")
    assert status(visitor, "/waste?group=pod") == (303, "/waste?group=pod&namespace=team-a")
    assert status(visitor, "/waiting") == (303, "/waiting?namespace=team-a")
    for path in ("/namespaces/team-a", "/waste?namespace=team-a", "/waiting?namespace=team-a"):
        assert status(visitor, path) == (200, "")
    for path in ("/namespaces/team-b", "/decisions?namespace=team-b", "/groups/lab", "/pods/team-b/sweep-1"):
        answer = visitor.get(path, base_url=URL)
        assert (answer.status_code, "reader may not get" in answer.text) == (403, True)
    assert "100.00" not in visitor.get("/namespaces/team-b", base_url=URL).text
    groups = visitor.get("/groups?namespace=team-a", base_url=URL)
    assert (groups.status_code, "Your account may not read all namespaces. Name one" in groups.text) == (
        403,
        True,
    )


def test_a_visitor_whose_account_names_no_namespace_chooses_one(
    dashboards: Dashboards, visitor: Client
) -> None:
    person = token("person")
    dashboards.books.reviews.tokens[person] = user_status("reader")
    log_in(visitor, person)

    answer = visitor.get("/", base_url=URL)

    assert (answer.status_code, "Choose a namespace" in answer.text) == (403, True)
    assert status(visitor, "/namespaces?namespace=team-a") == (303, "/namespaces/team-a")


def test_a_namespace_says_when_its_groups_budget_is_gone_first(
    dashboards: Dashboards, visitor: Client
) -> None:
    log_in(visitor)
    first = "the budget of its group lab is gone <strong><time"

    before = visitor.get("/namespaces/team-a", base_url=URL).text
    dashboards.books.entries(("_group.lab", "gpuHours: 340\nperiod: month", 1))
    after = visitor.get("/namespaces/team-a", base_url=URL).text

    assert (first in before, first in after) == (False, True)
    assert "At the present rate the budget is gone <strong><time" in before


@pytest.mark.parametrize("period", ["month", "day"])
def test_what_is_left_is_what_the_group_leaves_for_those_too_who_may_not_see_its_account(
    dashboards: Dashboards, visitor: Client, period: str
) -> None:
    """It is gone with the group's budget, whenever the namespace's own is granted anew."""
    log_in(visitor, READER)
    dashboards.books.entries(
        ("team-a", f"gpuHours: 100000\nperiod: {period}\ngroup: lab", 1),
        ("_group.lab", "gpuHours: 500\nperiod: month", 1),
    )
    page = visitor.get("/namespaces/team-a", base_url=URL).text
    assert "the budget of its group lab is gone <strong><time" in page
    left = re.search(r"<dt>Left</dt><dd>([0-9.]+)<small>of group lab; ([0-9,.]+) of its own", page)
    account = dashboards.books.get("/v1/budgets/team-a").get_json()
    assert left
    assert left.groups() == tuple(
        f"{amount['remaining'] / 3_600_000_000:,.2f}" for amount in (account["group"], account)
    )


def test_the_page_of_a_group_has_what_each_member_used_in_the_groups_period(
    dashboards: Dashboards, visitor: Client
) -> None:
    """Whatever the periods of the members' own budgets, and also of one that has left the group."""
    month_ms = T0 - 19 * DAY - 10 * HOUR
    before = days(month_ms - 50 * HOUR, month_ms)
    dashboards.books.write(
        Run("old-b", "team-b", started_ms=before[0][0], posted=before),
        Run("left", "team-e", started_ms=month_ms, posted=days(month_ms, month_ms + 7 * HOUR)),
    )
    dashboards.books.entries(
        ("team-a", "gpuHours: 400\nperiod: week\ngroup: lab", 1),
        ("team-b", "gpuHours: unlimited\ngroup: lab", 1),
        ("team-d", "gpuHours: 9\nperiod: once\ngroup: lab", 1),
        ("team-e", "gpuHours: 9\ngroup: lab", 1),
        ("team-e", "gpuHours: 9", T0),
    )
    log_in(visitor)
    group = dashboards.books.get("/v1/budgets/_group.lab").get_json()

    page = visitor.get("/groups/lab", base_url=URL).text

    table = page.split('aria-label="Members"')[1].split("</table>")[0]
    rows = [row.split("<td")[1:] for row in table.split("<tbody>")[1].split("<tr>")[1:]]
    names = re.findall(r'<a href="/namespaces/([^"]+)"', table)
    used = dict(zip(names, (row[2].split(">")[1].split("<")[0] for row in rows), strict=True))
    assert set(used) == {"team-a", "team-b", "team-d", "team-e"}
    assert (used["team-d"], used["team-e"]) == ("0.00", "7.00")
    assert round(sum(map(float, used.values())), 2) == round(
        (group["posted"] + group["pending"]) / GPU / HOUR, 2
    )


@pytest.mark.parametrize(("namespace", "caption"), [("team-a", "2 pods"), ("team-c", "1 pod")])
def test_the_pods_that_hold_cards_are_counted(visitor: Client, namespace: str, caption: str) -> None:
    log_in(visitor)

    assert f"<caption>{caption}</caption>" in visitor.get(f"/namespaces/{namespace}", base_url=URL).text


def test_a_page_says_one_thing_of_pods_over_budget(dashboards: Dashboards, visitor: Client) -> None:
    dashboards.books.entries(("team-c", "gpuHours: 120\nperiod: month\nonExhausted: deny", 1))
    log_in(visitor)

    page = visitor.get("/namespaces/team-c", base_url=URL).text

    assert ("new pods are refused" in page, "demoted" in page) == (True, False)
    assert f"{EFFECTS['enforce']}." not in page.replace("&#39;", "'")  # as everywhere in the cluster


def test_a_removed_pod_that_is_not_settled_stands_below_those_that_hold_cards(
    dashboards: Dashboards, visitor: Client
) -> None:
    with dashboards.books.store.writing() as connection:
        removed = update(SESSIONS).where(SESSIONS.c.uid == "train-7")
        connection.execute(removed.values(vanished_ms=T0 - HOUR, grace_ms=30_000))
    log_in(visitor)

    page = visitor.get("/namespaces/team-a", base_url=URL).text

    held = page.split('aria-label="Pods that hold cards"')[1].split("</table>")[0]
    ended = page.split('aria-label="Awaiting settlement"')[1].split("</table>")[0]
    assert ["train-7" in table for table in (held, ended)] == [False, True]
    assert "1 pod without cards that awaits settlement" in ended


def test_a_lead_who_may_read_no_namespace_of_its_own_is_asked_for_a_group(
    dashboards: Dashboards, visitor: Client
) -> None:
    lead = token("system:serviceaccount:leads:lab")
    dashboards.books.reviews.tokens[lead] = user_status("lead")
    for resource in ("budgets", "decisions", "grants", "sessions", "usage"):
        dashboards.books.reviews.denied |= {("lead", "get", resource, where) for where in ("", "leads")}
    log_in(visitor, lead)

    def asked(path: str) -> tuple[int, list[tuple[str, str]]]:
        answer = visitor.get(path, base_url=URL)
        return answer.status_code, re.findall(r'action="([^"]+)">\n<label for="(\w+)"', answer.text)

    of_budgets = [("/namespaces", "namespace"), ("/namespaces", "group")]
    assert status(visitor, "/") == (303, "/namespaces/leads")
    assert asked("/namespaces/leads") == (403, of_budgets)
    assert asked("/groups?namespace=leads") == (403, of_budgets)
    assert asked("/costs?namespace=leads") == (403, [("/costs", "namespace")])
    assert asked("/pods/leads/p") == (403, [])
    assert status(visitor, "/namespaces?group=lab") == (303, "/groups/lab")
    assert status(visitor, "/namespaces?namespace=_group.lab") == (303, "/groups/lab")
    page = visitor.get("/groups/lab", base_url=URL).text
    said = "The group's split gives elsewhere nothing of its 5.00 GPU-hours: it is not in the group."
    assert said in html.unescape(page)
    assert "Anew in each period" not in page
    tabs = re.findall(r'<li><a href="([^"]+)"', page)
    scoped = [f"/{each}?namespace=_group.lab" for each in ("waiting", "waste", "costs", "decisions")]
    assert tabs == ["/", "/groups", "/map", *scoped]
    for path in scoped:
        assert status(visitor, path) == (200, "")


def test_a_missing_right_takes_its_part_of_a_page_and_no_more(
    dashboards: Dashboards, visitor: Client
) -> None:
    dashboards.books.reviews.denied.add(("reader", "get", "grants", "team-a"))
    log_in(visitor, READER)

    page = visitor.get("/namespaces/team-a", base_url=URL).text

    assert "Not shown: reader may not get grants.bursar.dev in namespace team-a" in page
    assert "train-7" in page


def test_the_page_of_a_namespace_marks_the_pods_that_were_admitted_over_budget(
    dashboards: Dashboards, visitor: Client
) -> None:
    with dashboards.books.store.writing() as connection:
        its = SESSIONS.c
        connection.execute(update(SESSIONS).where(its.uid == "train-7").values(admitted_in_budget=False))
    log_in(visitor, READER)

    page = visitor.get("/namespaces/team-a", base_url=URL).text

    marked = re.findall(r'<th scope="row" class="name">(.*?)</th>', page)
    assert ["/train-7?" in each for each in marked if "admitted over budget" in each] == [True]


def test_the_waiting_page_goes_through_all_that_were_posted_and_counts_the_others(
    dashboards: Dashboards, visitor: Client
) -> None:
    pods = [waits(f"wait-{at:03}") for at in range(250)]
    waiting = {"total": 1_341, "pods": pods, "more": {"team-a": 1_000, "team-b": 91}}
    body = {"version": 1, "nodes": [], "gone": [], "waiting": waiting, "term": "a-1"}
    assert dashboards.books.post("/v1/cluster", body).status_code == 200
    log_in(visitor)
    shown: list[str] = []
    where: list[str] = ["/waiting"]
    while where:
        page = visitor.get(html.unescape(where.pop()), base_url=URL).text
        assert "1,091 more pods wait that are not listed here." in page
        shown += re.findall(r"/(wait-\d+)\?", page)
        where = re.findall(r'<a href="([^"]+)" rel="next">More', page)[:1]

    assert shown == [f"wait-{at:03}" for at in range(250)]
    assert "Pods 201 to 250 of 250" in visitor.get("/waiting?page=99", base_url=URL).text
    of_one = [visitor.get(f"/waiting?namespace={each}", base_url=URL).text for each in ("team-b", "team-c")]
    assert ["91 more pods wait" in page for page in of_one] == [True, False]
    assert ["No pod waits for a node." in page for page in of_one] == [False, True]


def test_who_reads_all_budgets_and_no_sessions_has_no_tabs_that_lead_to_a_refusal(
    dashboards: Dashboards, visitor: Client
) -> None:
    finance = token("system:serviceaccount:bursar-system:bursar-finance")
    dashboards.books.reviews.tokens[finance] = user_status("finance")
    for where in ("", "bursar-system", "team-a"):
        dashboards.books.reviews.denied |= {
            ("finance", "get", each, where) for each in ("sessions", "decisions")
        }

    def tabs(path: str) -> list[str]:
        page = visitor.get(path, base_url=URL).text
        return re.findall(r">([A-Z][a-z]+)</a></li>", page.partition("<nav")[2].partition("</nav>")[0])

    log_in(visitor, finance)
    assert tabs("/") == tabs("/costs?namespace=team-a") == ["Budgets", "Groups", "Waste", "Costs"]
    assert {*tabs("/costs?namespace=team-b")} >= {"Map", "Waiting", "Decisions"}
    log_in(visitor, READER)
    assert len(tabs("/namespaces/team-a")) == len(tabs("/costs?namespace=team-a")) == 7


def test_gangs_that_wait_for_cards_have_a_row_each(dashboards: Dashboards, visitor: Client) -> None:
    gated = {"state": "gated", "gang": "train-h"}
    never = "it can never start here: it needs 16 cards on nodes with pool=h100, which have 12"
    members = [{**waits(f"train-h-{at}"), **gated, "reason": never} for at in range(4)]
    others = [{**waits("solo"), "state": "gated"}, {**waits("b-0"), **gated, "namespace": "team-b"}]
    body = {"total": 6, "pods": [*members, *others], "more": {}}
    posted = {"version": 1, "nodes": [], "gone": [], "waiting": body, "term": "a-1"}
    assert dashboards.books.post("/v1/cluster", posted).status_code == 200
    log_in(visitor)

    page = visitor.get("/waiting", base_url=URL).text
    table = page.partition('aria-label="Waiting gangs"')[2].partition("</table>")[0]

    assert re.findall(r"/([^/?]+)\?uid=[^>]*>(?:[^<]|<wbr>)+</a> and (\d) more of gang ([^<]+)<", table) == [
        ("train-h-0", "3", "train-h"),
        ("b-0", "0", "train-h"),
    ]
    assert never in table
    of_one = visitor.get("/waiting?namespace=team-c", base_url=URL).text
    assert "Waiting gangs" not in of_one


def test_a_lead_passes_the_groups_budget_on_once_for_each_form(
    dashboards: Dashboards, visitor: Client
) -> None:
    lead = token("system:serviceaccount:leads:lab")
    dashboards.books.reviews.tokens[lead] = user_status("lead")
    for resource in ("budgets", "grants", "usage"):
        dashboards.books.reviews.denied.add(("lead", "get", resource, ""))
    log_in(visitor, lead)
    page = visitor.get("/groups/lab", base_url=URL).text
    key = page.split('name="key" value="')[1].split('"')[0]
    filled = {"key": key, "namespace": "team-b", "gpuHours": "12.5", "reason": "<sprint 4>"}

    def sent(**changed: str) -> TestResponse:
        data = {**filled, **form(visitor, "/groups/lab"), **changed}
        return visitor.post("/groups/lab", base_url=URL, data=data)

    def passed_on() -> list[tuple[str, str]]:
        listed = dashboards.books.get("/v1/groups/lab/grants").get_json()["namespaces"]
        return [(each["namespace"], each["gpuHours"]) for each in listed]

    used = page.split("What members used of the group")[1].split("</table>")[0]
    assert re.findall(r'<a href="/namespaces/([^"]+)"', used) == ["team-a", "team-b"]
    assert re.findall(r'<option value="([^"]+)">', page) == ["team-a", "team-b"]
    assert sent(form_token="0" * 64).status_code == 400
    assert passed_on() == []
    for _ in range(2):
        answer = sent()
        assert (answer.status_code, answer.headers["Location"]) == (
            303,
            "/groups/lab?passed-on=team-b#pass-on",
        )
    assert passed_on() == [("team-b", "12.5")]
    warning = "team-b now has "
    assert warning not in visitor.get("/groups/lab?passed-on=team-b", base_url=URL).text
    dashboards.books.entries(("team-b", "gpuHours: 1000\nperiod: month\ngroup: lab", 1))
    assert warning in visitor.get("/groups/lab?passed-on=team-b", base_url=URL).text
    assert warning not in visitor.get("/groups/lab?passed-on=elsewhere", base_url=URL).text
    (decision,) = dashboards.books.get("/v1/decisions?namespace=team-b&kind=grant").get_json()["decisions"]
    assert (decision["reason"], decision["figures"]["actor"]) == ("PassedOn", "lead")
    refusals = (
        ("namespace", {"namespace": "team-c"}, 409, "team-c is not in group lab"),
        ("gpuHours", {"gpuHours": "1e9"}, 400, "it must be a number of GPU-hours"),
        ("gpuHours", {"gpuHours": "588"}, 409, "600 GPU-hours were granted to group lab, and 12.5"),
        ("reason", {"reason": " "}, 400, "it must be a text of 1 to 500 characters"),
        ("", {"key": "é"}, 400, "Idempotency-Key: it must be"),
    )
    for at, (field, changed, status_code, sentence) in enumerate(refusals):
        answer = sent(**{"key": f"other-{at}", **changed})
        text = answer.text
        beside = f'id="about-{field}" class="help"><strong class="fault" role="alert">' if field else ""
        assert (answer.status_code, f"{beside}{sentence}" in text) == (status_code, True), text
        assert f'value="{changed.get("gpuHours", "12.5")}"' in text
    assert passed_on() == [("team-b", "12.5")]


def test_a_wrong_field_and_a_stranger_are_named_at_once_and_what_was_filled_in_stays(
    dashboards: Dashboards, visitor: Client
) -> None:
    """Whatever is wrong with the field: its form, or what the ledger has."""
    dashboards.books.entries(("team-d", "gpuHours: 1\nperiod: month\ngroup: lab", 0))
    log_in(visitor)
    page = visitor.get("/groups/lab", base_url=URL).text
    assert re.findall(r'<option value="([^"]+)">', page) == ["team-a", "team-b", "team-d"]  # d used nothing
    stranger, sound = "is not in group lab", {"namespace": "team-b", "gpuHours": "1", "reason": "r"}
    cases = (
        ({"namespace": "team-c", "gpuHours": "1,5"}, [stranger, "it must be a number of GPU-hours"]),
        ({"namespace": "team-c", "gpuHours": "601"}, [stranger, "600 GPU-hours were granted"]),
        ({"namespace": "team-c", "gpuHours": "0"}, [stranger, "it must be a number of GPU-hours other"]),
        ({"namespace": "A b", "gpuHours": "x", "reason": ""}, ["it must be the name of a namespace"]),
        ({"reason": "a\nb", "namespace": "team-c"}, [stranger, "it must be a text of 1 to 500"]),
    )
    for changed, faults in cases:
        filled = {**sound, **changed}
        data = {"key": "k", **filled, **form(visitor, "/groups/lab")}
        text = visitor.post("/groups/lab", base_url=URL, data=data).text
        said = re.findall(r'id="about-\w+" class="help"><strong class="fault" role="alert">([^<]+)<', text)
        assert [(at in each, each) for at, each in zip(faults, said, strict=True)] == [
            (True, each) for each in said
        ]
        shown = re.findall(r'<input id="field-\w+" name="(\w+)" value="([^"]*)"', text)
        kept = {name: value.replace("\n", "�") for name, value in filled.items()}
        assert dict(shown) == kept
        assert len(re.findall(r" autofocus", text)) == 1


def test_only_those_who_may_pass_on_have_the_form(dashboards: Dashboards, visitor: Client) -> None:
    dashboards.books.reviews.tokens[token("viewer")] = user_status("viewer")
    dashboards.books.reviews.denied.add(("viewer", "create", "groups", "lab"))
    log_in(visitor, token("viewer"))

    page = visitor.get("/groups/lab", base_url=URL).text
    data = {"namespace": "team-b", "gpuHours": "1", "reason": "r", "key": "k", **form(visitor, "/groups/lab")}
    answer = visitor.post("/groups/lab", base_url=URL, data=data)

    assert ("Passed on" in page, 'id="pass-on"' in page) == (True, False)
    assert (answer.status_code, 'id="pass-on"' in answer.text) == (403, False)


def test_a_form_of_an_ended_session_leads_to_the_login(dashboards: Dashboards, visitor: Client) -> None:
    lead = token("system:serviceaccount:leads:ended")
    dashboards.books.reviews.tokens[lead] = user_status("ended")
    log_in(visitor, lead)
    hidden = form(visitor, "/groups/lab")
    dashboards.books.reviews.tokens.pop(lead)
    dashboards.books.clock.turn(61_000)  # a review of the token is known for a minute

    data = {"namespace": "team-b", "gpuHours": "1", "reason": "r", "key": "e", **hidden}
    answer = visitor.post("/groups/lab", base_url=URL, data=data)

    assert (answer.status_code, answer.headers["Location"]) == (303, "/login?next=%2Fgroups%2Flab&ended=1")


def test_a_group_without_a_limit_has_no_form_and_says_why(dashboards: Dashboards, visitor: Client) -> None:
    dashboards.books.entries(("team-d", "gpuHours: 1\ngroup: without", 0))
    log_in(visitor)

    page = visitor.get("/groups/without", base_url=URL).text

    assert "a group without a limit has nothing to pass on." in page
    assert 'id="pass-on"' not in page


def test_a_budget_is_used_up_now_later_or_not_in_its_period(visitor: Client) -> None:
    log_in(visitor)

    rows = visitor.get("/", base_url=URL).text.partition("<tbody>")[2].split("</tr>")

    words = {name: next(each for each in rows if f"/namespaces/{name}" in each) for name in BUDGETS}
    assert {name: ">exhausted</td>" in each for name, each in words.items()} == {
        "team-a": False,
        "team-b": True,
        "team-c": False,
        "vision": False,
    }


def test_no_page_runs_what_a_tenant_wrote_or_anything_inline(visitor: Client) -> None:
    log_in(visitor)
    shown = ""
    refused = ("/login", "/groups/none/x", "/namespaces/%3Cscript%3E", "/decisions?pod=%3Cscript%3E&from=x")
    for path in (*PAGES, *refused):
        answer = visitor.get(path, base_url=URL)
        policy = answer.headers["Content-Security-Policy"]
        shown += answer.text
        assert "unsafe" not in policy
        assert policy.startswith("default-src 'none'; script-src 'self'")
        assert "frame-ancestors 'none'" in policy
        named = ("X-Content-Type-Options", "Referrer-Policy", "Cache-Control")
        assert [answer.headers[each] for each in named] == ["nosniff", "no-referrer", "no-store"]
    assert HOSTILE not in shown
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in shown
    assert re.findall(r"<[^>]+\s(?:style|on\w+)=", shown) == []
    assert set(re.findall(r"<script[^>]*>", shown)) == {
        '<script src="/static/theme.js">',
        '<script src="/static/live.js" defer>',
    }
    assert re.findall(r"""(?:src|href|action)=["'](?!/|#)""", shown) == []


def test_texts_lose_what_could_hide_or_turn_them(visitor: Client) -> None:
    log_in(visitor)

    page = visitor.get("/", base_url=URL, query_string={"find": "good\u202edab\u200b\x1b[31m"}).text

    assert "“good\ufffddab\ufffd\ufffd[31m”" in page
    assert not any(each in page for each in "\u202e\u200b\x1b")


def test_what_is_no_page_is_answered_by_the_api(visitor: Client) -> None:
    assert visitor.get("/v1/none").content_type == "application/problem+json"
    assert visitor.get("/v1/openapi.json").get_json()["openapi"].startswith("3.")
    assert visitor.get("/static/none.css").status_code == 404
    with visitor.get("/static/style.css") as style:
        assert (style.status_code, style.headers["Cache-Control"]) == (200, "no-cache")


def test_a_ledger_alone_says_that_there_is_no_extender(tmp_path: Path) -> None:
    made = Dashboards(tmp_path)
    made.books.state()
    try:
        client = Client(with_dashboard(made.books.app, made.books.clock, only_meter=True))
        log_in(client)
        pages = [client.get(path, base_url=URL).text for path in ("/map", "/waiting")]
    finally:
        made.close()

    assert ["There is no extender" in page for page in pages] == [True, True]
    assert ["has posted no" in page for page in pages] == [False, False]


@pytest.mark.parametrize("hours", [{}, {"team-a": 2, "team-b": 3}], ids=["nothing yet", "two"])
def test_without_a_budget_the_first_page_shows_the_use_of_namespaces(
    tmp_path: Path, hours: dict[str, int]
) -> None:
    made = Dashboards(tmp_path)
    made.books.write(*(Run(name, name, posted=((T0 - each * HOUR, T0, 1),)) for name, each in hours.items()))
    try:
        client = made.client()
        log_in(client)
        page = client.get("/", base_url=URL).text.partition("<main")[2]
    finally:
        made.close()

    assert ('href="/would"' in page, 'href="/costs"' in page) == (True, True)
    found = re.findall(r'<a href="/namespaces/[^"]*">(.*?)</a></th><td[^>]*>(.*?)</td>', page)
    assert found == [(name, f"{each}.00") for name, each in reversed(hours.items())]


def test_the_login_of_a_ledger_on_somebodys_machine_names_the_file_with_its_token(tmp_path: Path) -> None:
    made = Dashboards(tmp_path)
    try:
        app = with_dashboard(made.books.app, made.books.clock, only_meter=True, token_file="/home/a/token")
        pages = [Client(each).get("/login", base_url=URL).text for each in (app, made.app)]
    finally:
        made.close()

    assert ["/home/a/token" in page for page in pages] == [True, False]
    assert ["kubectl create token" in page for page in pages] == [False, True]


def test_the_first_page_says_what_is_not_certain_and_what_is_not_charged(
    dashboards: Dashboards, visitor: Client
) -> None:
    log_in(visitor)
    assert "not certain" not in visitor.get("/", base_url=URL).text
    pulse = {
        "id": 1,
        "tick_ms": T0,
        "decided_ms": T0,
        "state": "",
        "device_claims": "",
        "claims": '{"team-a":2,"":1}',
    }
    pulse["watches"] = f'{{"nodes":[{T0},"403 nodes is forbidden"]}}'

    with dashboards.books.store.writing() as connection:
        one = select(SESSIONS.c.uid).where(SESSIONS.c.settled_ms.is_(None)).limit(1).scalar_subquery()
        connection.execute(update(SESSIONS).where(SESSIONS.c.uid == one).values(doubt=HOSTILE))
        connection.execute(delete(PULSE))
        connection.execute(insert(PULSE).values(pulse))
        broken = {"key": "team-x", "sentence": "ConfigMap b: team-x, line 1", "seen_ms": T0}
        connection.execute(insert(ENTRY_ERRORS).values(broken))

    page = html.unescape(visitor.get("/", base_url=URL).text)
    assert f'<p class="note">The rate of 1 running session is not certain: {HOSTILE}.</p>' in page
    assert '<p class="note">Nodes are not followed since' in page
    assert "A budget entry has a mistake, so this text does not count: ConfigMap b: team-x, line 1." in page
    assert (
        '<p class="note">3 pods hold devices by resource claims alone, uncharged, for claims are not followed'
        in page
    )


def test_the_page_of_a_namespace_without_placement_says_what_is_not_known(
    dashboards: Dashboards, visitor: Client
) -> None:
    log_in(visitor)
    assert "lacement is off" not in visitor.get("/namespaces/vision", base_url=URL).text
    text = "gpuHours: 2000\nperiod: month\nonExhausted: reclaim\nplacement: off"
    dashboards.books.entries(("vision", text, T0))

    page = html.unescape(visitor.get("/namespaces/vision", base_url=URL).text)

    assert f'<p class="note">P{NOT_PLACED[1:]}.</p>' in page
    assert '<p class="note">onExhausted: reclaim acts as deprioritize' in page


def test_the_pages_say_in_which_mode_a_namespace_is_and_what_follows(
    dashboards: Dashboards, visitor: Client
) -> None:
    log_in(visitor)
    spent = "Once it is used up"
    assert spent in visitor.get("/namespaces/vision", base_url=URL).text
    text = "gpuHours: 2000\nperiod: month\nonExhausted: reclaim\nmode: observe"
    dashboards.books.entries(("vision", text, T0))

    page = visitor.get("/namespaces/vision", base_url=URL).text
    story = visitor.get("/pods/vision/any", base_url=URL).text

    sentence = f"vision is in mode observe, by its entry: {EFFECTS['observe']}."
    assert (f'<p class="note">{sentence}</p>' in page, spent in page) == (True, False)
    assert f'<p class="note">{sentence}</p>' in story
    row = r'<a href="/namespaces/vision">vision</a></th>\s*<td data-label="mode">observe</td>'
    assert re.search(row, visitor.get("/", base_url=URL).text)


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("/namespaces/nosuch", "nosuch has no budget and uses nothing: is the name right?"),
        ("/groups/nosuch", "No budget entry names group nosuch: is the name right?"),
        ("/pods/nosuch/pod", "Nothing is recorded about Pod/pod in nosuch: is the name right?"),
        ("/nosuch", "There is no such page."),
    ],
)
def test_what_is_not_there_is_one_sentence(path: str, sentence: str, visitor: Client) -> None:
    log_in(visitor)

    page = visitor.get(path, base_url=URL, headers={"Accept": "text/html,*/*;q=0.8"}).text

    shown = page.split("<main")[1].split("</main>")[0]
    assert sentence in shown
    assert not re.findall("<(?:dl|section class=.card.>|table|svg)", shown)
    assert "is the name right?" not in visitor.get("/namespaces/team-a", base_url=URL).text


def test_a_program_that_asks_for_what_is_not_there_gets_the_apis_problem(visitor: Client) -> None:
    browser = {"Accept": "text/html"}
    assert visitor.get("/nosuch").content_type == "application/problem+json"
    assert visitor.get("/v1/none", headers=browser).content_type == "application/problem+json"
    assert visitor.get("/metrics", headers=browser).content_type == "application/problem+json"


def _names(page: str) -> list[str]:
    """Of the rows, from above."""
    return re.findall(r'<th scope="row"[^>]*><a href="/(?:namespaces|groups)/([^"]+)"', page)


def test_headings_sort_up_and_down_and_what_has_no_value_comes_last(visitor: Client) -> None:
    log_in(visitor)

    def rows(path: str) -> list[str]:
        return _names(visitor.get(path, base_url=URL).text)

    first = visitor.get("/", base_url=URL).text
    assert "<select" not in first
    assert _names(first) == ["team-b", "team-c", "lab", "team-a", "vision", "sandbox"]
    assert 'href="/?sort=-used">Used</a>' in first
    assert rows("/?sort=-used") == ["vision", "lab", "team-a", "team-b", "team-c", "sandbox"]
    assert rows("/?sort=percent")[-1] == rows("/?sort=-percent")[-1] == "sandbox"
    assert rows("/?sort=namespace")[1:3] == ["sandbox", "team-a"]
    page = visitor.get("/?sort=-used", base_url=URL).text
    assert re.search(r'aria-sort="descending"><a href="/\?sort=used">Used</a>', page)
    assert rows("/groups?sort=-members") == ["lab"]
    refused = visitor.get("/?sort=nosuch", base_url=URL)
    assert (refused.status_code, "sort: it must be namespace, mode" in refused.text) == (400, True)


def test_figures_above_the_list_lead_to_their_rows_and_leave_out_no_period(
    dashboards: Dashboards, visitor: Client
) -> None:
    """Each tile says how many budgets it counts; its link shows as many."""
    periods = ("week", "day", "once")
    dashboards.books.entries(*((f"by-{name}", f"gpuHours: 5\nperiod: {name}", 0) for name in periods))
    log_in(visitor)
    page = html.unescape(visitor.get("/", base_url=URL).text)

    tiles = re.findall(r'<dt>([^<]*)</dt><dd><a href="([^"]*)">([^<]*)</a><small>(.*?)</small>', page)
    counts = []
    for label, where, figure, note in tiles:
        sums = re.search(r"(\d+) budget", note)
        counted = int(sums[1] if label.startswith("Used") and sums else figure)
        shown = visitor.get(where, base_url=URL).text
        assert len(_names(shown)) == counted, label
        assert ('href="/">All namespaces and groups' in shown) is True
        counts.append((label.split()[0], counted))
    assert counts == [("Used", 4), ("Used", 1), ("Used", 1), ("Budgets", 1), ("Over", 1), ("At", 2)]


def test_columns_have_two_decimals_and_what_is_used_is_rounded_down(
    dashboards: Dashboards, visitor: Client
) -> None:
    """0.004 and 99.999 of 100 GPU-hours."""
    for name, length_ms in (("little", 14_400), ("all-but", 359_996_400)):
        run = Run(name, name, started_ms=T0 - length_ms, posted=days(T0 - length_ms, T0))
        dashboards.books.write(run)
        dashboards.books.entries((name, "gpuHours: 100\nperiod: month", 0))
    log_in(visitor)

    page = visitor.get("/?find=l", base_url=URL).text

    used = dict(re.findall(r'/namespaces/([^"]+)".*?data-label="used"[^>]*>([^<]*)<', page, re.DOTALL))
    assert (used["little"], used["all-but"]) == ("&lt;0.01", "99.99")
    own = visitor.get("/namespaces/all-but", base_url=URL).text
    assert "<dt>Used</dt><dd>99.99<small>99%</small>" in own


def test_the_page_of_a_namespace_says_that_it_takes_no_new_pods(
    dashboards: Dashboards, visitor: Client
) -> None:
    dashboards.books.entries(("vision", "gpuHours: 2000\nmaxGPUs: 0", T0 - 1))
    log_in(visitor)

    page = visitor.get("/namespaces/vision", base_url=URL).text

    assert "It takes no new GPU pods, for maxGPUs is 0; running ones go on." in page


@pytest.mark.parametrize(
    ("floor", "up_to"), [("hours: 30", "30.00 GPU-hours a period"), ("cards: 1.5", "1.5 cards at one time")]
)
def test_the_page_of_a_namespace_says_what_its_protected_pods_used_and_up_to_what(
    dashboards: Dashboards, visitor: Client, floor: str, up_to: str
) -> None:
    entry = f"gpuHours: 2000\nperiod: month\nprotect: {{owners: [Deployment], labels: {{a: b}}, {floor}}}"
    dashboards.books.entries(("vision", entry, T0 - 1))
    log_in(visitor)

    page = visitor.get("/namespaces/vision", base_url=URL).text

    tile = f"<dt>Protected</dt><dd>0.00<small>up to {up_to}</small></dd>"
    assert tile in page
    assert "Pods of Deployment with <code>a=b</code> are protected: once the budget is spent" in page
    assert "<dt>Protected</dt>" not in visitor.get("/namespaces/team-a", base_url=URL).text


@pytest.mark.parametrize(
    ("path", "sheets"),
    [
        ("/", (BUDGET_SHEET,)),
        ("/waiting", (WAITING, HELD)),
        ("/decisions", (DECISIONS,)),
        ("/nodes/gpu-1", (NODE_CHARGES,)),
    ],
)
def test_headings_are_those_of_the_resource_with_what_they_mean(
    path: str, sheets: tuple[Sheet, ...], visitor: Client
) -> None:
    log_in(visitor)

    page = html.unescape(visitor.get(path, base_url=URL).text)

    found = re.findall(r'<th scope="col"[^>]* title="([^"]*)"[^>]*>(?:<a [^>]*>)?([^<]*)(?:</a>)?</th>', page)
    assert len(found) > 5
    assert set(found) <= {(each.about, each.title) for sheet in sheets for each in sheet.columns}


def test_a_lead_is_led_to_the_page_of_the_group(tmp_path: Path) -> None:
    made = filled(tmp_path)
    lead = token("system:serviceaccount:bursar-leads:lab")
    made.books.reviews.tokens[lead] = user_status("lead")
    made.books.reviews.denied.add(("lead", "get", "budgets", ""))
    client = made.client()
    log_in(client, lead)

    assert status(client, "/") == (303, "/groups/lab")
    assert status(client, "/groups/lab")[0] == 200
    made.close()


def test_a_lead_sees_the_state_of_the_members_and_what_they_run_and_wait_for(tmp_path: Path) -> None:
    made = filled(tmp_path)
    lead = token("system:serviceaccount:bursar-leads:lab")
    made.books.reviews.tokens[lead] = user_status("lead")
    elsewhere = {(resource, "") for resource in ("budgets", "sessions", "usage")} | {
        ("sessions", "_group.lab")
    }
    made.books.reviews.denied |= {("lead", "get", *what) for what in elsewhere}
    client = made.client()
    log_in(client, lead)

    page, waiting = (
        client.get(path, base_url=URL).text for path in ("/groups/lab", "/waiting?namespace=_group.lab")
    )

    members = page.split('aria-label="Members"')[1].split("</table>")[0]
    holding = page.split('aria-label="Pods that hold cards"')[1].split("</table>")[0]
    assert [word in members for word in ("team-a", "team-b", "Runs out early", "Over budget")] == [True] * 4
    pods = ("train-7", "infer-1", "train-v", "notebook")
    assert [f">{pod}<" in holding.replace("<wbr>", "") for pod in pods] == [True, True, False, False]
    assert ["train-<wbr>9" in waiting, "sweep-<wbr>1" in waiting] == [True, True]
    assert client.get("/waste?namespace=_group.lab", base_url=URL).status_code == 200

    made.books.reviews.denied.add(("lead", "get", "sessions", "team-b"))
    made.books.clock.turn(2 * MINUTE)
    page = client.get("/groups/lab", base_url=URL).text
    assert "Not shown: lead may get sessions.bursar.dev of _group.lab in team-a alone" in page
    made.close()


@pytest.mark.parametrize(
    ("path", "account"),
    [
        ("/groups/lab", "leads of the group have <code>bursar-leads/lab</code>"),
        ("/costs?namespace=_group.lab", "leads of the group have <code>bursar-leads/lab</code>"),
        ("/waiting?namespace=_group.lab", "sessions.bursar.dev of _group.lab in team-a alone"),
        ("/namespaces/team-b", "readers have <code>team-b/bursar-reader</code>"),
        ("/decisions?namespace=team-b", "readers have <code>team-b/bursar-reader</code>"),
    ],
)
def test_a_page_that_is_refused_names_the_account_that_sees_it(
    path: str, account: str, visitor: Client
) -> None:
    log_in(visitor, READER)

    answer = visitor.get(path, base_url=URL)

    assert (answer.status_code, account in answer.text) == (403, True)


def test_who_is_over_budget_reads_the_people_to_ask_and_the_text_to_send(
    dashboards: Dashboards, visitor: Client
) -> None:
    leads = "leads: [Ada Lovelace, J. O'Brien]"
    dashboards.books.entries(("_group.lab", f"gpuHours: 600\nperiod: month\n{leads}", 1))
    log_in(visitor)

    pages = ("/namespaces/team-b", "/pods/team-b/team-b-0", "/namespaces/team-a", "/groups/lab")
    over, pod, within, group = (html.unescape(visitor.get(path, base_url=URL).text) for path in pages)

    for page in (over, pod):
        assert "Send this to Ada Lovelace, J. O'Brien (leads of group lab). Bursar sends nothing." in page
        assert 'kubectl bursar grant team-b HOURS --group lab --reason "REASON"' in page
    assert ["Ask for more" in page for page in (within, group)] == [False, False]


def test_a_login_leads_to_the_page_that_was_shown_last_unless_another_is_asked_for(tmp_path: Path) -> None:
    made = filled(tmp_path)
    client = made.client()
    first = log_in(client).headers["Location"]
    for path in ("/waiting?namespace=team-a", "/nothing", "/namespaces/team-a/x"):
        client.get(path, base_url=URL)

    assert first == "/"
    assert log_in(client).headers["Location"] == "/waiting?namespace=team-a"
    assert log_in(client, onward="/costs").headers["Location"] == "/costs"
    client.set_cookie("bursar-page", "//elsewhere.example", domain="bursar.test")
    assert log_in(client).headers["Location"] == "/"
    made.close()


def test_a_page_for_which_too_much_is_in_work_says_when_to_come_again(dashboards: Dashboards) -> None:
    client, shared = dashboards.client(), dashboards.books.services.shared
    log_in(client)
    shared._bytes, shared._wait_s = shared._most_bytes, 0

    answer = client.get("/", base_url=URL)

    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "2")
    assert "too many large answers" in answer.text


def test_the_runs_of_a_cron_job_that_were_held_are_one_row_that_leads_to_it(
    dashboards: Dashboards, visitor: Client
) -> None:
    log_in(visitor)
    runs = [
        DecisionRun(
            Decision(
                at_ms=T0 + minute,
                kind=HELD_KIND,
                reason="OverBudget",
                namespace="team-a",
                owner=f"Job/nightly-2992032{minute}",
                name=f"nightly-2992032{minute}-x",
                uid=f"uid-{minute}",
            ),
            1,
            T0 + minute,
        )
        for minute in range(3)
    ]
    with dashboards.books.store.writing() as connection:
        decisions.record(connection, "webhook", runs)

    for path in ("/decisions?namespace=team-a", "/namespaces/team-a"):
        text = visitor.get(path, base_url=URL).text
        assert '<a href="/pods/team-a/CronJob/nightly">CronJob/nightly</a>' in text
        assert "nightly-2992032" not in text
