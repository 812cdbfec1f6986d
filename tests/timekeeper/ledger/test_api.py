"""The REST API at its edges: who may, what is malformed, what a report looks like."""

import json

import pytest

from tests.timekeeper.clocks import at_ms, iso
from tests.timekeeper.databases import ON_BOTH
from tests.timekeeper.worlds import (
    ADMIN,
    DAY,
    GPU,
    HOUR,
    MINUTE,
    SECOND,
    T0,
    Town,
    budgets,
    gpu_pod,
    node,
    pod_status,
    token,
    user_status,
)
from tests.worlds import container
from timekeeper.accounts.usage import gpu_hours
from timekeeper.api.ledger.ledger_reader import LedgerReader
from timekeeper.api.ledger.outages import OutageLog
from timekeeper.api.ledger.readiness import ReadinessWatch
from timekeeper.api.report_formats import safe
from timekeeper.core.budgets.policy import GPU_HOUR
from timekeeper.core.texts import moment

ENTRY = "gpuHours: 2\nperiod: month\nonExhausted: deprioritize"


@pytest.fixture
def home(town: Town) -> Town:
    """team-a has two GPU-hours and a pod that ran for half an hour."""
    town.begin(("nodes", node()), ("configmaps", budgets(team_a=ENTRY)))
    town.hear("pods", gpu_pod(started_ms=T0, ended_ms=T0 + 30 * MINUTE))
    town.advance(HOUR, heard=False)
    return town


def beats(**changes: object) -> dict[str, object]:
    """A good body of heartbeats, with changes."""
    device = {"uuid": "GPU-0", "utilisation": 40, "memory_mib": None, "scope": "shared"}
    body = {"version": 1, "boot": "b", "sequence": 1, "beats": [{"age_ms": 0, "devices": [device]}]}
    return {**body, **changes}


ROUTES = [
    ("/v1/standings", "get", "standings", ""),
    ("/v1/budgets", "get", "budgets", ""),
    ("/v1/budgets/team-a", "get", "budgets", "team-a"),
    ("/budget/team-a", "get", "budgets", "team-a"),
    ("/v1/usage", "get", "usage", ""),
    ("/v1/usage?namespace=team-a", "get", "usage", "team-a"),
    ("/v1/would", "get", "usage", ""),
    ("/v1/would?namespace=team-a", "get", "usage", "team-a"),
    ("/v1/sessions", "get", "sessions", ""),
    ("/v1/doubts", "get", "sessions", ""),
    ("/v1/findings", "get", "sessions", ""),
    ("/v1/idle", "get", "sessions", ""),
    ("/v1/idle?namespace=team-a", "get", "sessions", "team-a"),
    ("/v1/sessions?namespace=team-a", "get", "sessions", "team-a"),
    ("/v1/grants", "get", "grants", ""),
    ("/v1/grants?subject=team-a", "get", "grants", "team-a"),
    ("/v1/balances", "get", "balances", ""),
    ("/v1/balances/team-a", "get", "balances", "team-a"),
    ("/v1/budgets/_group.blue", "get", "budgets", "_group.blue"),
]


def test_a_route_checks_its_own_right(home: Town) -> None:
    for path, verb, resource, namespace in ROUTES:
        assert home.get(path).status_code == 200, path

        home.clock.turn(MINUTE - SECOND)
        home.reviews.denied = {("admin", verb, resource, namespace)}
        home.advance(SECOND)
        answer = home.get(path)

        assert answer.status_code == 403, path
        assert f"admin may not {verb} {resource}.bursar.dev" in answer.get_json()["detail"]
        home.reviews.denied = set()
        home.advance(MINUTE)


def test_without_a_token_no_request_is_answered(home: Town) -> None:
    for path, *_ in ROUTES:
        answer = home.client.get(path)

        assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer"), path
        assert answer.content_type == "application/problem+json"


def test_without_a_token_no_request_writes(home: Town) -> None:
    for path in ("/v1/heartbeats", "/budget/team-a/report", "/budget/team-a/increase"):
        assert home.client.post(path, data=b"{}").status_code == 401, path


def test_a_token_that_is_bound_to_no_pod_sends_no_heartbeat(home: Town) -> None:
    assert home.post("/v1/heartbeats", beats()).status_code == 403
    assert home.post("/budget/team-a/report", {}).status_code == 403


def test_a_pods_token_reads_nothing_without_rights(home: Town) -> None:
    mine = token("uid-p")
    home.reviews.tokens[mine] = pod_status(gpu_pod())
    username = "system:serviceaccount:team-a:default"
    home.reviews.denied |= {(username, verb, resource, ns) for _, verb, resource, ns in ROUTES}

    for path, *_ in ROUTES:
        assert home.get(path, mine).status_code == 403


MALFORMED: list[tuple[object, str | None]] = [
    (b"", None),
    (b"[]", None),
    (b"{", None),
    (b"\xff\xfe", None),
    (b"[" * 100_000, None),
    (beats(version=2), "version"),
    (beats(boot=""), "boot"),
    (beats(boot=7), "boot"),
    (beats(boot="x" * 65), "boot"),
    (beats(boot="'; DROP TABLE postings; --"), "boot"),
    (beats(sequence=-1), "sequence"),
    (beats(sequence=True), "sequence"),
    (beats(sequence=1.5), "sequence"),
    (beats(sequence=2**63), "sequence"),
    (beats(beats=[]), "beats"),
    (beats(beats={}), "beats"),
    (beats(beats=[{"age_ms": 0, "devices": []}] * 1001), "beats"),
    (beats(beats=[7]), "beats[0]"),
    (beats(beats=[{"devices": []}]), "beats[0].age_ms"),
    (beats(beats=[{"age_ms": -1, "devices": []}]), "beats[0].age_ms"),
    (beats(beats=[{"age_ms": 10**12, "devices": []}]), "beats[0].age_ms"),
    (beats(beats=[{"age_ms": 0}]), "beats[0].devices"),
    (beats(beats=[{"age_ms": 0, "devices": [7]}]), "beats[0].devices[0]"),
    (beats(beats=[{"age_ms": 0, "devices": [{"uuid": ""}]}]), "beats[0].devices[0].uuid"),
    (
        beats(beats=[{"age_ms": 0, "devices": [{"uuid": "g", "scope": "mine"}]}]),
        "beats[0].devices[0].scope",
    ),
    (
        beats(beats=[{"age_ms": 0, "devices": [{"uuid": "g", "scope": "shared", "utilisation": -1}]}]),
        "beats[0].devices[0].utilisation",
    ),
]


def test_malformed_heartbeats_are_refused_by_field(home: Town) -> None:
    mine = token("uid-p")
    home.reviews.tokens[mine] = pod_status(gpu_pod())

    answers = [home.post("/v1/heartbeats", body, mine) for body, _ in MALFORMED]

    told = [(each.status_code, each.content_type, each.get_json().get("field")) for each in answers]
    assert told == [(400, "application/problem+json", field) for _, field in MALFORMED]


def test_good_heartbeats_with_figures_are_taken(home: Town) -> None:
    mine = token("uid-p")
    home.reviews.tokens[mine] = pod_status(gpu_pod())

    assert home.post("/v1/heartbeats", beats(), mine).get_json()["interval_ms"] == 5_000


def test_the_ca_is_sent_with_the_first_post_and_now_and_then(home: Town) -> None:
    pod = gpu_pod()
    sent = [number for number in range(1, 103) if "ca" in home.beat(pod, number).get_json()]

    assert sent == [1, 51, 101]


def test_a_body_that_is_too_large_is_413(home: Town) -> None:
    answer = home.post("/v1/decisions", b" " * 300_000)

    assert (answer.status_code, answer.content_type) == (413, "application/problem+json")


def test_an_unknown_route_is_a_problem(home: Town) -> None:
    answer = home.get("/v2/standings")

    assert (answer.status_code, answer.content_type) == (404, "application/problem+json")
    assert answer.get_json()["status"] == 404


def test_a_wrong_method_says_which_are_right(home: Town) -> None:
    answer = home.post("/v1/standings", {})

    assert answer.status_code == 405
    assert "GET" in answer.headers["Allow"]


def test_a_name_that_no_namespace_can_have_is_400(home: Town) -> None:
    for name in ("Team-A", "team_a", "-a", "a" * 64, "team-a%00", "%F0%9F%92%A9"):
        assert home.get(f"/v1/budgets/{name}").status_code == 400, name
        assert home.get(f"/v1/usage?namespace={name}").status_code == 400, name


def test_a_budget_is_reported_in_amounts_and_in_exact_hours(home: Town) -> None:
    budget = home.budget()

    assert budget == {
        "version": 1,
        "silentSince": None,
        "request": None,
        "namespace": "team-a",
        "mode": "enforce",
        "modeFrom": "cluster",
        "idle": None,
        "standing": "IN_BUDGET",
        "entry": "team-a",
        "onExhausted": "deprioritize",
        "ratioMilli": 250,
        "warnAtMilli": None,
        "period": {
            "kind": "month",
            "timeZone": "UTC",
            "from": at_ms("2026-11-01T00:00:00Z"),
            "to": at_ms("2026-12-01T00:00:00Z"),
        },
        "carryOverMilli": 0,
        "maxGPUsMilli": None,
        "maxGPUsPerPodMilli": None,
        "granted": 2 * GPU_HOUR,
        "carried": 0,
        "posted": GPU_HOUR // 2,
        "pending": 0,
        "reserved": 0,
        "remaining": 3 * GPU_HOUR // 2,
        "gpuHours": {
            "granted": "2",
            "carried": "0",
            "posted": "0.5",
            "pending": "0",
            "reserved": "0",
            "remaining": "1.5",
        },
        "validUntil": at_ms("2026-12-01T00:00:00Z"),
        "exhaustedAt": None,
        "deciding": {"subject": "team-a", "remaining": 5_400_000_000, "to": at_ms("2026-12-01T00:00:00Z")},
        "group": None,
        "placement": "on",
        "protect": None,
        "received": None,
        "warnings": [],
        "lastError": None,
        "fairShare": None,
    }


def test_the_list_of_budgets_holds_every_entry(home: Town) -> None:
    (only,) = home.get("/v1/budgets").get_json()["budgets"]

    assert {"version": 1, "silentSince": None, "request": None, **only} == home.budget()


def test_a_report_is_clipped_to_its_span_exactly(home: Town) -> None:
    report = home.get(f"/v1/usage?from={T0 + 7}&to={T0 + 11}&group=pod").get_json()

    assert report["total"]["amount"] == 4 * GPU
    assert home.get(f"/v1/usage?from={T0 + DAY}&to={T0 + 2 * DAY}").get_json()["rows"] == []


UNKNOWN_OR_TWICE = [
    ("/v1/usage?namespace=team-a&namespace=team-b", "namespace"),
    ("/v1/usage?from=1&from=1", "from"),
    ("/v1/usage?to=1&group=pod&group=namespace", "group"),
    ("/v1/usage?format=csv&format=csv&format=csv", "format"),
    ("/v1/budgets?x=1&x=2", "x"),
    ("/v1/budgets/team-a?namespace=team-b", "namespace"),
    ("/v1/standings?namespace=team-a", "namespace"),
]


def test_a_parameter_that_is_unknown_or_given_twice_is_400_and_named(home: Town) -> None:
    answers = [home.get(path) for path, _ in UNKNOWN_OR_TWICE]

    told = [(each.status_code, each.get_json()["field"]) for each in answers]
    assert told == [(400, field) for _, field in UNKNOWN_OR_TWICE]


def test_how_often_a_parameter_was_given_is_reported(home: Town) -> None:
    detail = home.get("/v1/usage?format=csv&format=csv&format=csv").get_json()["detail"]

    assert detail == "it is given 3 times; once is allowed"


def test_an_empty_parameter_is_none_of_its_values(home: Town) -> None:
    """A script whose variable is empty must not read what it never asked for."""
    for name in ("from", "to", "namespace", "group", "format"):
        answer = home.get(f"/v1/usage?{name}=")

        assert (answer.status_code, answer.get_json()["field"]) == (400, name)


def test_a_report_takes_rfc_3339_times(home: Town) -> None:
    path = "/v1/usage?from=2026-11-20T11:00:00%2B01:00&to=2026-11-20T10:10:00Z"

    assert home.get(path).get_json()["total"]["amount"] == GPU * 10 * MINUTE


def test_a_report_without_times_is_of_this_month(home: Town) -> None:
    home.change("pods", gpu_pod("old", started_ms=T0 - 30 * DAY, ended_ms=T0 - 30 * DAY + HOUR))

    report = home.get("/v1/usage").get_json()

    assert (report["from"], report["to"]) == (at_ms("2026-11-01T00:00:00Z"), home.clock())
    assert report["total"]["amount"] == GPU_HOUR // 2


def test_a_report_has_pending_beside_posted(home: Town) -> None:
    pod = gpu_pod("second", started_ms=T0, card=1, percent=10)
    home.change("pods", pod)
    home.beat(pod, 1)

    report = home.get("/v1/usage").get_json()

    assert report["rows"] == [
        {
            "namespace": "team-a",
            "posted": GPU_HOUR // 2,
            "pending": GPU_HOUR // 10,
            "amount": 6 * GPU_HOUR // 10,
            "gpuHours": "0.6",
        }
    ]


def test_a_report_of_one_namespace_has_no_other(home: Town) -> None:
    home.change("pods", gpu_pod("theirs", namespace="team-b", card=1, started_ms=T0, ended_ms=T0 + SECOND))

    assert [row["namespace"] for row in home.get("/v1/usage").get_json()["rows"]] == ["team-a", "team-b"]
    only = home.get("/v1/usage?namespace=team-b&group=pod").get_json()["rows"]
    assert [(row["namespace"], row["pod"], row["uid"]) for row in only] == [
        ("team-b", "theirs", "uid-theirs")
    ]


def test_a_report_as_csv(home: Town) -> None:
    answer = home.get("/v1/usage?group=pod&format=csv")

    assert answer.content_type == "text/csv; charset=utf-8"
    assert answer.get_data(as_text=True).splitlines() == [
        "from,to,namespace,pod,uid,owner,node,models,price,currency,posted,pending,amount,gpuHours,cost",
        f"2026-11-01T00:00:00Z,{iso(home.clock())},team-a,p,uid-p,,n1,A100,,USD,1800000000,0,1800000000,0.5,",
    ]


def test_a_pods_owner_stands_in_the_report(home: Town) -> None:
    owned = gpu_pod("owned", namespace="team-b", card=1, started_ms=T0, ended_ms=T0 + SECOND)
    owned["metadata"]["ownerReferences"] = [
        {"kind": "Node", "name": "n1"},
        {"kind": "Job", "name": "train", "controller": True},
    ]
    home.change("pods", owned)

    (row,) = home.get("/v1/usage?namespace=team-b&group=pod").get_json()["rows"]
    assert row["owner"] == "Job/train"


def test_a_replica_sets_pods_are_their_deployments(home: Town) -> None:
    for name, owner, labels in (
        ("a", "web-5d4f8c7b9", {"pod-template-hash": "5d4f8c7b9"}),
        ("b", "web-5d4f8c7b9", {}),
        ("c", "web", {"pod-template-hash": "b"}),
    ):
        pod = gpu_pod(name, namespace="team-b", card=1, started_ms=T0, ended_ms=T0 + SECOND)
        reference = {"kind": "ReplicaSet", "name": owner, "controller": True}
        pod["metadata"] |= {"ownerReferences": [reference], "labels": labels}
        home.hear("pods", pod)
    home.tick()

    rows = home.get("/v1/usage?namespace=team-b&group=pod").get_json()["rows"]
    assert [row["owner"] for row in rows] == ["Deployment/web", "ReplicaSet/web-5d4f8c7b9", "ReplicaSet/web"]


@pytest.mark.parametrize("text", ["=cmd()", "+1", "-1", "@x", "\tx", "\rx"])
def test_a_cell_that_begins_like_a_formula_is_text(text: str) -> None:
    assert safe(text) == f"'{text}"
    assert safe("team-a") == "team-a"


def test_a_model_named_like_a_formula_is_text_in_a_report(town: Town) -> None:
    town.begin(("nodes", node(model="=HYPERLINK(1)")))
    town.hear("pods", gpu_pod(started_ms=T0, ended_ms=T0 + SECOND))
    town.advance(MINUTE, heard=False)

    lines = town.get("/v1/usage?group=pod&format=csv").get_data(as_text=True).splitlines()

    assert ",'=HYPERLINK(1)," in lines[1]


NOT_TAKEN = [
    ("from=yesterday", "from"),
    ("from=2026-11-20T10:00:00", "from"),
    ("from=-5", "from"),
    ("to=99999999999999999", "to"),
    ("to=999999999999999", "to"),
    ("from=5&to=5", "to"),
    ("from=6&to=5", "to"),
    ("group=colour", "group"),
    ("group=node,node", "group"),
    ("by=year", "by"),
    ("timeZone=Mars", "timeZone"),
    ("limit=0", "limit"),
    ("limit=10001", "limit"),
    ("after=x", "after"),
    ("from=0&by=hour", "from"),
    ("format=focus&group=pod", "group"),
    ("format=xml", "format"),
    ("colour=red", "colour"),
    ("namespace=A", "namespace"),
]


def test_a_parameter_that_cannot_be_taken_is_named(home: Town) -> None:
    answers = [home.get(f"/v1/usage?{query}") for query, _ in NOT_TAKEN]

    told = [(each.status_code, each.get_json()["field"]) for each in answers]
    assert told == [(400, field) for _, field in NOT_TAKEN]


def test_hours_are_exact_where_they_end_and_otherwise_still_give_the_amount() -> None:
    assert gpu_hours(GPU_HOUR * 5 // 4) == "1.25"
    assert gpu_hours(0) == "0"
    assert gpu_hours(-GPU_HOUR // 2) == "-0.5"
    for amount in (1, -1, 7, GPU_HOUR + 1, 123_456_789_012_345):
        assert round(float(gpu_hours(amount)) * GPU_HOUR) == amount


def test_the_ancestors_budget_is_in_minutes(home: Town) -> None:
    assert home.get("/budget/team-a").get_json() == {
        "budget_available": True,
        "budget": 120.0,
        "budget_remaining": 90.0,
    }
    assert home.get("/budget/team-b").get_json() == {
        "budget_available": True,
        "budget": None,
        "budget_remaining": None,
    }


def test_the_ancestors_report_is_a_heartbeat_of_the_tokens_pod(home: Town) -> None:
    pod = gpu_pod("second", started_ms=T0, card=1, percent=10)
    home.change("pods", pod)
    mine = token("second")
    home.reviews.tokens[mine] = pod_status(pod)

    answer = home.post("/budget/team-a/report", {"usage_factor": 99, "pod_name": "another"}, mine)

    assert answer.get_json() == {"terminate": False}
    assert home.budget()["pending"] == GPU_HOUR // 10
    home.clock.turn(SECOND)
    home.post("/budget/team-a/report", {}, mine)
    assert home.budget()["pending"] == GPU_HOUR // 10 + 100 * SECOND


def test_the_ancestors_sidecar_learns_when_its_pod_has_ended(home: Town) -> None:
    mine = token("uid-p")
    home.reviews.tokens[mine] = pod_status(gpu_pod())

    assert home.post("/budget/team-a/report", {}, mine).get_json() == {"terminate": True}


def test_the_ancestors_report_for_another_namespace_is_refused(home: Town) -> None:
    mine = token("uid-p")
    home.reviews.tokens[mine] = pod_status(gpu_pod())

    assert home.post("/budget/team-b/report", {}, mine).status_code == 403


def increase(town: Town, body: object, key: str | None = "k", namespace: str = "team-a") -> int:
    headers = {"Idempotency-Key": key} if key else {}
    return town.post(f"/budget/{namespace}/increase", body, **headers).status_code


def test_a_grant_by_hand_is_made_once_for_its_key(home: Town) -> None:
    assert [increase(home, {"minutes": 30}) for _ in range(3)] == [200, 200, 200]
    assert home.budget()["gpuHours"]["granted"] == "2.5"

    assert increase(home, {"minutes": 30}, key="another") == 200
    assert home.budget()["gpuHours"]["granted"] == "3"


def test_a_key_stands_for_one_amount_in_one_namespace(home: Town) -> None:
    home.change("configmaps", budgets(team_a=ENTRY, team_b=ENTRY))
    increase(home, {"minutes": 30})

    assert increase(home, {"minutes": 31}) == 422
    assert increase(home, {"minutes": 31}, namespace="team-b") == 200
    assert home.budget("team-b")["gpuHours"]["granted"] == "2.516666666667"


def test_a_grant_by_hand_outlives_a_changed_budget(home: Town) -> None:
    increase(home, {"minutes": 30})
    home.change("configmaps", budgets(team_a="gpuHours: 1\nperiod: month"))

    assert home.budget()["gpuHours"]["granted"] == "1.5"


def test_a_grant_says_who_gave_it_and_why(home: Town) -> None:
    increase(home, {"minutes": 30, "reason": "ticket 7"})

    with home.store.reading() as connection:
        row = connection.exec_driver_sql("SELECT actor, reason FROM grants WHERE kind = 'manual'").one()
    assert tuple(row) == ("admin", "ticket 7")


def test_minutes_are_taken_as_they_were_written(home: Town) -> None:
    assert increase(home, b'{"minutes": 0.1}') == 200

    assert home.budget()["granted"] == 2 * GPU_HOUR + 6_000_000


NO_MINUTES = [
    b"",
    b"[]",
    b"{}",
    b'{"minutes": 0}',
    b'{"minutes": -5}',
    b'{"minutes": "5"}',
    b'{"minutes": true}',
    b'{"minutes": NaN}',
    b'{"minutes": Infinity}',
    b'{"minutes": 1e999999}',
    b'{"minutes": 1e99999999999999999999}',
    b'{"minutes": 0.0000001}',
    b'{"minutes": 1.0000000000000000000000000000000001}',
    b'{"minutes": 10000000001}',
    b'{"minutes": ' + b"9" * 5000 + b"}",
    b'{"minutes": 5, "reason": ""}',
    b'{"minutes": 5, "reason": 7}',
    b"[" * 100_000,
]


def test_minutes_that_cannot_be_granted_are_400(home: Town) -> None:
    for body in NO_MINUTES:
        assert increase(home, body) == 400, body[:60]
    assert home.budget()["gpuHours"]["granted"] == "2"


def test_a_grant_needs_a_key(home: Town) -> None:
    for key in (None, "x" * 201, "with blank"):
        assert increase(home, {"minutes": 30}, key=key) == 400, key


def test_a_key_of_an_increase_stands_for_one_caller(home: Town) -> None:
    home.reviews.tokens[token("ann")] = user_status("ann")
    assert increase(home, {"minutes": 30}) == 200

    path, head = "/budget/team-a/increase", {"Idempotency-Key": "k"}
    answer = home.post(path, {"minutes": 30}, token("ann"), **head)

    assert (answer.status_code, answer.get_json()["field"]) == (422, "Idempotency-Key")
    assert home.budget()["gpuHours"]["granted"] == "2.5"


def test_an_unlimited_namespace_cannot_be_increased(home: Town) -> None:
    assert increase(home, {"minutes": 30}, namespace="team-b") == 409


def test_grants_stay_inside_what_the_ledger_can_hold(home: Town) -> None:
    codes = [increase(home, {"minutes": 10_000_000_000}, key=str(number)) for number in range(9)]

    assert codes == [200] * 7 + [400] * 2


def test_who_may_read_may_not_grant(home: Town) -> None:
    home.reviews.denied.add(("admin", "create", "grants", "team-a"))

    assert increase(home, {"minutes": 30}) == 403
    assert home.budget()["gpuHours"]["granted"] == "2"


def test_health_needs_no_token_and_metrics_need_the_right_to_read_them(home: Town) -> None:
    home.look()
    assert home.client.get("/livez").status_code == 200
    assert home.client.get("/readyz").status_code == 200
    metrics = home.get("/metrics").text
    assert "bursar_heartbeats_total" in metrics
    assert "team-a" not in metrics

    assert home.client.get("/metrics").status_code == 401
    home.clock.turn(2 * MINUTE)
    home.reviews.denied.add(("admin", "get", "/metrics", ""))
    refused = home.get("/metrics")
    assert (refused.status_code, refused.get_json()["detail"]) == (
        403,
        "admin may not get the nonResourceURL /metrics",
    )


def test_a_settler_that_is_gone_is_reported_by_readyz(home: Town) -> None:
    home.clock.turn(46 * SECOND if home.store.is_shared else 11 * SECOND)

    answer = home.get("/readyz")

    assert (answer.status_code, answer.get_data(as_text=True)) == (
        503,
        f"settler: it has written nothing since {moment(T0 + HOUR)}\n",
    )
    assert home.client.get("/livez").status_code == 200


def test_an_error_of_ours_is_500_without_a_word_of_what_it_was(
    home: Town, capfd: pytest.CaptureFixture[str]
) -> None:
    """Here the standings in the database are not what the settler writes."""
    with home.store.writing() as connection:
        connection.exec_driver_sql("UPDATE standings SET revision = 'x', body = '{\"a secret\": 1}'")

    answer = home.get("/v1/standings")

    assert (answer.status_code, answer.content_type) == (500, "application/problem+json")
    assert "namespaces" not in json.dumps(answer.get_json())
    said = capfd.readouterr().err
    assert "event=internal-error route=/v1/standings error=\"KeyError: 'namespaces'\" trace=" in said


def test_readyz_says_what_was_seen_last_and_fails_once_that_is_ten_seconds_old(home: Town) -> None:
    now = [100.0]
    ledger = LedgerReader(home.store, home.clock)
    readiness = ReadinessWatch(ledger, home.clock, str, lambda: "a clock", OutageLog(), lambda: now[0])
    before = readiness.answer()
    readiness.look()

    now[0] = 109.9
    assert (before[0], readiness.answer()) == (False, (True, ["ok", "a clock"]))
    now[0] = 110.0
    assert readiness.answer() == (False, ["database: it was read last 10 s ago"])


@ON_BOTH
def test_sessions_show_who_held_what_and_what_it_cost(home: Town) -> None:
    home.hear("pods", gpu_pod("second", started_ms=T0, card=1, percent=50, standing="OVER_BUDGET"))
    home.advance()

    ended, running = home.get("/v1/sessions").get_json()["sessions"]

    assert (ended["uid"], ended["pod"], ended["state"], ended["amount"]) == (
        "uid-p",
        "p",
        "settled",
        GPU_HOUR // 2,
    )
    assert (ended["started"], ended["ended"], ended["cards"]) == (T0, T0 + 30 * MINUTE, ["GPU-0"])
    assert (running["state"], running["posted"], running["pending"]) == ("open", 0, GPU_HOUR // 2)
    assert (ended["admittedInBudget"], running["admittedInBudget"]) == (True, False)
    assert (running["requestedMilli"], running["requestedMib"], running["rateMilli"]) == (500, 8_000, 500)
    for query, pods in {
        "state=open": ["second"],
        "state=settled": ["p"],
        "node=n2": [],
        "namespace=team-b": [],
        f"from={T0 + 31 * MINUTE}": ["second"],
        f"to={T0}": [],
        f"from={T0}&to={T0 + 1}&node=n1": ["p", "second"],
    }.items():
        found = home.get(f"/v1/sessions?{query}").get_json()["sessions"]
        assert [each["pod"] for each in found] == pods, query


@pytest.mark.parametrize("devices", ["placed", "not placed"])
@ON_BOTH
def test_a_pod_that_requests_memory_alone_has_requested_its_share_of_the_memory(
    home: Town, devices: str
) -> None:
    pod = gpu_pod("memory", started_ms=T0, card=1, percent=50)
    pod["spec"]["containers"] = [container(gpu_memory="8000")]
    slices = {"uuid": "GPU-1", "index": 1, "share_milli": 0, "memory_mib": 8_000}
    placed = json.dumps({"version": 1, "containers": {"main": [slices]}}) if devices == "placed" else ""
    pod["metadata"]["annotations"]["bursar.dev/devices"] = placed
    home.hear("pods", pod)
    home.advance()

    (session,) = home.get("/v1/sessions?state=open").get_json()["sessions"]
    (row,) = home.get("/v1/usage?group=pod&use=true&limit=10").get_json()["rows"][:1]

    assert (session["requestedMilli"], session["requestedMib"], session["rateMilli"]) == (500, 8_000, 500)
    assert (row["pod"], row["requested"]) == ("memory", row["amount"])


def test_a_session_whose_end_has_no_time_ends_with_the_first_report_of_it(home: Town) -> None:
    pod = gpu_pod("lost", bound_ms=T0, started_ms=T0, card=1)
    home.change("pods", pod)
    home.beat(pod, 1)  # an hour after T0
    home.clock.turn(HOUR)
    home.change("pods", gpu_pod("lost", bound_ms=T0, card=1, phase="Failed"))
    reported = home.clock()
    home.advance(HOUR, heard=False)

    whole = {each["pod"]: each for each in home.get("/v1/sessions").get_json()["sessions"]}
    assert (whole["lost"]["state"], whole["lost"]["ended"]) == ("settled", None)
    for query, pods in {
        f"from={reported - 1}": ["lost"],
        f"from={reported}": [],
        f"from={T0 + 45 * MINUTE}&to={T0 + 50 * MINUTE}": ["lost"],
        f"to={T0}": [],
    }.items():
        found = home.get(f"/v1/sessions?{query}").get_json()["sessions"]
        assert [each["pod"] for each in found] == pods, query


def test_pages_of_sessions_budgets_and_balances_are_the_whole(home: Town) -> None:
    home.hear("configmaps", budgets(team_a=ENTRY, team_b=ENTRY, team_c=ENTRY))
    for number in range(4):
        home.hear("pods", gpu_pod(f"n{number}", started_ms=T0, ended_ms=T0 + SECOND))
    home.tick()

    for name, key in (("sessions", "uid"), ("budgets", "namespace"), ("balances", "namespace")):
        whole = [each[key] for each in home.get(f"/v1/{name}").get_json()[name]]
        found, following = [], f"/v1/{name}?limit=2"
        while following:
            answer = home.get(following)
            page = answer.get_json()
            found += [each[key] for each in page[name]]
            following = f"/v1/{name}?limit=2&after={page['next']}" if page["next"] else ""
            assert bool(following) == ("Link" in answer.headers)
        assert found == whole
        assert len(whole) >= 3


def test_a_balance_is_the_budgets_figures_alone(home: Town) -> None:
    balance, budget = home.get("/v1/balances/team-a").get_json(), home.budget()

    shared = ("standing", "granted", "posted", "pending", "reserved", "remaining", "gpuHours")
    assert {name: balance[name] for name in shared} == {name: budget[name] for name in shared}
    assert (balance["from"], balance["to"]) == (budget["period"]["from"], budget["period"]["to"])


def test_an_unknown_namespace_has_the_budget_that_it_would_have(home: Town) -> None:
    assert home.get("/v1/budgets/nobody").get_json()["standing"] == "UNLIMITED"
    assert home.get("/v1/balances/nobody").get_json()["posted"] == 0
    for path, name in (
        ("sessions?namespace", "sessions"),
        ("grants?subject", "grants"),
        ("usage?namespace", "rows"),
    ):
        assert home.get(f"/v1/{path}=nobody").get_json()[name] == []


def test_each_caller_is_reviewed_as_itself(home: Town) -> None:
    other = token("other")
    home.reviews.tokens[other] = user_status("other")
    home.reviews.denied.add(("other", "get", "budgets", ""))

    assert home.get("/v1/budgets", other).status_code == 403
    assert home.get("/v1/budgets", ADMIN).status_code == 200
