"""`GET /v1/decisions` and `GET /v1/explain`: who decided what about a pod, and what it waits for."""

import pytest

from tests.timekeeper.clocks import iso
from tests.timekeeper.ledger.test_decisions import post, posted
from tests.timekeeper.worlds import (
    GPU,
    HOUR,
    MINUTE,
    SECOND,
    T0,
    Json,
    Town,
    budgets,
    gpu_pod,
    node,
    token,
    user_status,
)
from tests.worlds import container
from timekeeper.core.decisions import DecisionRun, Figure
from timekeeper.store.decisions import SOURCE, record

BOTH_DATABASES = "how an owner's pods and decisions are found is SQL"
WAITS = {
    "cardsNeeded": 1,
    "memoryNeededMib": 8192,
    "largestHoleNode": "gpu-3",
    "largestHoleMib": 4096,
    "largestHoleMilli": 500,
    "podsAhead": 4,
    "reasons": "3 nodes: no card has 8192 MiB free",
}
READER = token("reader")


@pytest.fixture
def home(town: Town) -> Town:
    town.begin(("nodes", node()), ("configmaps", budgets(team_a="gpuHours: 1\nperiod: once")))
    town.reviews.tokens[READER] = user_status("reader")
    town.reviews.denied |= {("reader", "get", "decisions", each) for each in ("", "team-b")}
    return town


def listed(town: Town, query: str = "", bearer: str = "") -> list[Json]:
    answer = town.get(f"/v1/decisions?{query}", *([bearer] if bearer else []))
    assert answer.status_code == 200, answer.text
    found: list[Json] = answer.get_json()["decisions"]
    return found


def placed(name: str, **figures: object) -> Json:
    given = {"node": "n1", "cards": "GPU-0", "shareMilli": 1000, "memoryMib": 16000} | figures
    return posted(
        kind="placed", reason="Bound", name=name, generate_name="", uid=f"uid-{name}", figures=given
    )


def test_budgets_grants_and_standings_are_decisions_with_their_figures(home: Town) -> None:
    start = home.clock()
    home.hear("pods", gpu_pod(started_ms=T0))
    home.advance(2 * HOUR)
    home.post(
        "/v1/grants", {"subject": "team-a", "gpuHours": 5, "reason": "a deadline"}, **{"Idempotency-Key": "k"}
    )
    home.post(
        "/v1/grants", {"subject": "team-a", "gpuHours": 5, "reason": "a deadline"}, **{"Idempotency-Key": "k"}
    )

    found = listed(home, "namespace=team-a")[::-1]

    told = [(each["kind"], each["reason"], each["source"]) for each in found]
    assert told == [
        ("budget", "EntryAdded", "timekeeper"),
        ("grant", "Granted", "timekeeper"),
        ("grant", "Granted", "timekeeper"),
    ]
    assert found[0]["budget"] == f"team-a@{found[0]['first']}"
    assert found[0]["first"] >= start
    assert found[2]["sentence"] == "5 GPU-hours were granted (manual) by admin: a deadline"
    assert home.recorded[-1].reason == "OverBudget"
    assert home.recorded[-1].figures["granted"] == GPU * HOUR


def test_decisions_are_filtered_and_paged_the_newest_first(home: Town) -> None:
    for name in ("p", "q", "r"):
        home.clock.turn(MINUTE)
        assert post(home, placed(name), posted(owner="Job/other", namespace="team-b")) == 200

    everything = listed(home, "namespace=team-a&kind=placed")
    assert [each["pod"] for each in everything] == ["r", "q", "p"]
    assert [each["pod"] for each in listed(home, "namespace=team-a&pod=q")] == ["q"]
    assert [each["pod"] for each in listed(home, "uid=uid-p")] == ["p"]
    assert listed(home, "owner=Job/other&reason=SpentGrant")[0]["count"] == 3
    until = everything[0]["first"]
    assert [each["pod"] for each in listed(home, f"kind=placed&to={until}")] == ["q", "p"]
    assert [each["pod"] for each in listed(home, f"kind=placed&from={until}")] == ["r"]
    page = home.get("/v1/decisions?kind=placed&limit=2").get_json()
    rest = home.get(f"/v1/decisions?kind=placed&limit=2&after={page['next']}").get_json()
    assert [each["pod"] for each in page["decisions"] + rest["decisions"]] == ["r", "q", "p"]
    assert rest["next"] is None


def test_the_pod_of_another_namespace_is_named_only_to_those_who_may_read_there(home: Town) -> None:
    other = {"node": "n1", "how": "evicted", "otherNamespace": "team-b", "otherPod": "secret"}
    post(home, posted(kind="reclaimed", reason="Reclaimed", name="p", uid="uid-p", figures=other))

    (shown,) = listed(home, "namespace=team-a&kind=reclaimed")
    (hidden,) = listed(home, "namespace=team-a&kind=reclaimed", READER)
    explained = home.get("/v1/explain/team-a/p", READER)

    assert "team-b/secret" in shown["sentence"]
    assert "a pod of another namespace" in hidden["sentence"]
    assert hidden["figures"] == {"node": "n1", "how": "evicted"}
    assert explained.status_code == 200
    assert "secret" not in explained.text
    assert home.get("/v1/decisions", READER).status_code == 403
    assert home.get("/v1/explain/team-b/p", READER).status_code == 403


def test_a_pod_is_explained_from_its_refusal_to_its_charge(home: Town) -> None:
    post(
        home,
        posted(
            kind="waiting", reason="TooLittleFree", name="p", uid="uid-p", figures=WAITS, owner="Job/train"
        ),
    )
    waiting = home.get("/v1/explain/team-a/p").get_json()
    post(home, placed("p"))
    home.hear("pods", gpu_pod(started_ms=T0))
    home.advance(HOUR // 2)

    running = home.get("/v1/explain/team-a/p?uid=uid-p").get_json()

    assert waiting["waitsFor"] == [
        "needs 1 card with 8192 MiB; the card with most free memory has 4096 MiB and 50% of its compute free,"
        " on gpu-3",
        "4 waiting pods are ahead",
    ]
    assert (running["waitsFor"], [each["kind"] for each in running["steps"]]) == ([], ["waiting", "placed"])
    assert running["charges"][0]["gpuHours"] == "0.5"
    assert running["budget"].startswith("team-a has 0.") or running["budget"].startswith("team-a is")
    assert home.get("/v1/explain/team-a/p?uid=other").get_json()["steps"] == []


def test_a_life_is_told_in_the_order_of_its_times_whichever_record_arrives_first(home: Town) -> None:
    post(home, placed("p") | {"first_age_ms": 100, "last_age_ms": 100})
    held = posted(kind="held", reason="DeclaredTime", name="p", generate_name="", uid="uid-p")
    post(home, held | {"first_age_ms": 900, "last_age_ms": 900})

    steps = home.get("/v1/explain/team-a/p").get_json()["steps"]

    assert [each["kind"] for each in steps] == ["held", "placed"]
    assert steps[0]["last"] < steps[1]["last"]


def test_what_it_waits_for_is_of_the_last_decision_whichever_record_arrives_first(home: Town) -> None:
    for kind, reason, age_ms in (("waiting", "TooLittleFree", 300), ("demoted", "OverBudget", 900)):
        decided = posted(kind=kind, reason=reason, name="q", generate_name="", uid="uid-q", figures=WAITS)
        post(home, decided | {"first_age_ms": age_ms, "last_age_ms": age_ms})

    found = home.get("/v1/explain/team-a/q").get_json()

    assert [each["kind"] for each in found["steps"]] == ["demoted", "waiting"]
    assert found["waitsFor"] != []


def test_a_pod_was_admitted_before_it_waited_whatever_the_clock_of_the_webhook_says(home: Town) -> None:
    for kind, reason, age_ms in (("held", "Turn", 300), ("waiting", "WaitsForClaims", 900)):
        decided = posted(kind=kind, reason=reason, name="q", generate_name="", uid="uid-q", figures=WAITS)
        post(home, decided | {"first_age_ms": age_ms, "last_age_ms": age_ms})

    found = home.get("/v1/explain/team-a/q").get_json()

    assert [step["kind"] for step in found["steps"]] == ["held", "waiting"]
    assert found["waitsFor"] != []


@pytest.mark.parametrize(
    ("cards", "needs"),
    [(1, "needs 1 card with 8192 MiB; "), (3, "needs 3 cards with 8192 MiB on one node; ")],
)
def test_several_cards_are_needed_on_one_node(home: Town, cards: int, needs: str) -> None:
    figures = WAITS | {"cardsNeeded": cards}
    post(home, posted(kind="waiting", reason="TooLittleFree", name="p", uid="uid-p", figures=figures))

    assert home.get("/v1/explain/team-a/p").get_json()["waitsFor"][0].startswith(needs)


def test_a_deployment_without_pods_is_explained_by_the_refusals_of_its_pods(home: Town) -> None:
    post(home, posted(owner="Deployment/web", generate_name="web-7c9f-"))

    for kind in ("deployment", "Deployment", "deploy"):
        found = home.get(f"/v1/explain/team-a/{kind}/web").get_json()
        assert (found["subject"], [each["sentence"] for each in found["steps"]]) == (
            "Deployment/web",
            ["the grant is spent"],
        )


@pytest.mark.parametrize("kind", ["notebook", "notebooks", "Notebook", "NOTEBOOK"])
def test_an_owner_of_any_kind_is_explained_by_what_was_refused_for_it(home: Town, kind: str) -> None:
    refused = posted(
        kind="refused", reason="AboveCap", name="", generate_name="", uid="", figures={"message": "8"}
    )
    for owner in ("Notebook/nb", "Notebook/nb-2", "Other/nb"):
        post(home, refused | {"owner": owner})

    steps = home.get(f"/v1/explain/team-a/{kind}/nb").get_json()["steps"]

    assert [each["owner"] for each in steps] == ["Notebook/nb"]


def test_a_cron_job_is_explained_by_its_own_template_and_its_jobs(home: Town) -> None:
    others = (
        "Job/night-29400000",
        "Job/nightly-now",
        "Job/nightly-29400000-x",
        "Job/nightlyx-29400000",
        "Job/nightly",
    )
    for owner in ("CronJob/nightly", "Job/nightly-29400000", "Job/nightly-29401440", *others):
        post(home, posted(owner=owner, generate_name=f"{owner[4:]}-"))
    post(home, posted(namespace="team-b", owner="Job/nightly-29402880"))
    for owner in ("nightly-29404320", "nightly-other"):
        pod = gpu_pod(f"{owner}-a", started_ms=T0)
        pod["metadata"]["ownerReferences"] = [{"kind": "Job", "name": owner, "controller": True}]
        home.hear("pods", pod)
    home.advance(MINUTE)

    for kind in ("cronjob", "CronJob", "cj"):
        found = home.get(f"/v1/explain/team-a/{kind}/nightly").get_json()
        owners = [each["owner"] for each in found["steps"]]
        assert (found["subject"], owners) == (
            "CronJob/nightly",
            ["CronJob/nightly", "Job/nightly-29400000", "Job/nightly-29401440"],
        )
        assert [each["pod"] for each in found["charges"]] == ["nightly-29404320-a"]


def test_a_waiting_pod_of_a_namespace_over_budget_shows_by_how_much_and_until_when(home: Town) -> None:
    home.hear("pods", gpu_pod(started_ms=T0))
    home.advance(3 * HOUR)
    post(home, posted(kind="waiting", reason="GrantSpent", name="q", figures={"reasons": "x"}))

    found = home.get("/v1/explain/team-a/q").get_json()

    assert found["waitsFor"] == ["team-a is 2.167 GPU-hours over budget"]


def test_a_pod_whose_session_has_opened_waits_for_nothing(home: Town) -> None:
    post(home, posted(kind="waiting", reason="TooLittleFree", name="p", uid="uid-p", figures=WAITS))
    home.hear("pods", gpu_pod(started_ms=T0))
    home.advance(MINUTE)

    assert home.get("/v1/explain/team-a/p").get_json()["waitsFor"] == []


def unbound(name: str = "q") -> Json:
    """A pod of a Job, without a node."""
    raw = gpu_pod(name, node="")
    raw["metadata"]["ownerReferences"] = [{"kind": "Job", "name": "train", "controller": True}]
    return raw


def waiting_pod(home: Town, name: str = "q") -> None:
    """A pod without a node, of which the extender has posted that it waits."""
    home.change("pods", unbound(name))
    post(
        home,
        posted(
            kind="waiting",
            reason="TooLittleFree",
            name=name,
            generate_name="",
            uid=f"uid-{name}",
            figures=WAITS,
            owner="Job/train",
        ),
    )


def write_recorded(home: Town) -> None:
    """What the settler has recorded is in the database, as its thread writes it."""
    with home.store.writing() as connection:
        record(connection, SOURCE, [DecisionRun(each, 1, each.at_ms) for each in home.recorded])
    home.recorded.clear()


CAPPED = {"needsAtLeastMilli": 1000, "capMilli": 1000, "heldByOthersMilli": 1000, "reasons": "x"}


@pytest.mark.parametrize(
    ("waits", "figures", "holder"),
    [
        ("Deployment/web", CAPPED, True),
        ("Deployment/web", WAITS | {"heldCards": 1, "heldNodes": 1}, True),
        ("Deployment/web", WAITS, False),
        ("Deployment/other", CAPPED, False),
        ("StatefulSet/web", CAPPED, False),
    ],
)
def test_what_an_update_waits_for_is_its_own_old_pod(
    home: Town, waits: str, figures: dict[str, Figure], holder: bool
) -> None:
    old = gpu_pod("web-5d8f-old", started_ms=T0)
    old["metadata"]["ownerReferences"] = [{"kind": "ReplicaSet", "name": "web-5d8f", "controller": True}]
    old["metadata"]["labels"] = old["metadata"].get("labels", {}) | {"pod-template-hash": "5d8f"}
    home.hear("pods", old)
    home.advance(MINUTE)
    about = {"name": "new", "generate_name": "", "uid": "uid-new", "owner": waits}
    post(home, posted(kind="waiting", reason="TooLittleFree", figures=figures, **about))

    first, *_ = home.get("/v1/explain/team-a/new").get_json()["waitsFor"]
    assert first.startswith("held by web-5d8f-old, of the same Deployment web: its update") is holder


def test_after_what_decides_a_pod_learns_when_it_may_start_while_that_is_fresh(home: Town) -> None:
    waiting_pod(home)
    when = "not before 2026-11-20T14:20:00Z, unless pods end early"
    row: Json = {"namespace": "team-a", "name": "q", "uid": "uid-q", "state": "refused"}
    row |= {"standing": "IN_BUDGET", "priority": 0, "age_ms": MINUTE, "reason": "no card", "when": when}
    waits = {"total": 1, "pods": [row], "more": {}}
    body = {"version": 1, "nodes": [], "gone": [], "waiting": waits, "term": "a"}
    assert home.post("/v1/cluster", body).status_code == 200

    assert home.get("/v1/explain/team-a/q").get_json()["waitsFor"][1] == when
    accept = "application/json;as=Table;v=v1;g=meta.k8s.io"
    (line,) = home.get("/v1/waiting", Accept=accept).get_json()["rows"]
    assert line["cells"][-1] == "no card; not before 2026-11-20 14:20:00Z, unless pods end early"
    home.clock.turn(2 * MINUTE)
    assert when not in home.get("/v1/explain/team-a/q").get_json()["waitsFor"]


def test_a_deleted_pod_waits_for_nothing_and_its_life_ends_with_its_deletion(home: Town) -> None:
    waiting_pod(home)
    home.clock.turn(MINUTE)
    home.change("pods", unbound(), deleted=True)
    write_recorded(home)

    pod = home.get("/v1/explain/team-a/q").get_json()
    job = home.get("/v1/explain/team-a/job/train").get_json()

    last = pod["steps"][-1]
    assert (pod["waitsFor"], job["waitsFor"]) == ([], [])
    assert (last["kind"], last["reason"], last["sentence"]) == (
        "deleted",
        "DeletedUnbound",
        "Deleted before it had a node.",
    )
    assert last["first"] == home.clock()


def test_a_decision_that_arrives_after_a_pods_deletion_does_not_make_it_wait(home: Town) -> None:
    home.change("pods", unbound())
    home.change("pods", unbound(), deleted=True)
    write_recorded(home)
    late = {"name": "q", "generate_name": "", "uid": "uid-q", "figures": WAITS}
    post(home, posted(kind="waiting", reason="TooLittleFree", **late))

    assert home.get("/v1/explain/team-a/q").get_json()["waitsFor"] == []


def test_a_controller_waits_for_what_its_living_pods_wait_for(home: Town) -> None:
    waiting_pod(home, "q")
    waiting_pod(home, "r")
    home.change("pods", unbound("r"), deleted=True)
    write_recorded(home)

    assert home.get("/v1/explain/team-a/job/train").get_json()["waitsFor"][-1] == "4 waiting pods are ahead"
    assert home.get("/v1/explain/team-a/r").get_json()["waitsFor"] == []


def test_a_pod_that_finalizers_keep_after_its_deletion_waits_for_nothing(home: Town) -> None:
    waiting_pod(home)
    going = unbound()
    going["metadata"] |= {"deletionTimestamp": iso(home.clock()), "finalizers": ["example.com/keep"]}
    home.change("pods", going)
    write_recorded(home)

    found = home.get("/v1/explain/team-a/q").get_json()

    assert (found["waitsFor"], found["steps"][-1]["reason"]) == ([], "DeletionRequested")


def test_a_deleted_pod_that_had_a_node_leaves_no_such_decision(home: Town) -> None:
    home.change("pods", gpu_pod(started_ms=T0))
    home.change("pods", gpu_pod(started_ms=T0), deleted=True)

    assert [each for each in home.recorded if each.kind == "deleted"] == []


def test_a_decision_by_the_groups_account_names_the_groups_budget(town: Town) -> None:
    own = "gpuHours: 50\nperiod: once\ngroup: lab"
    entries = {"team_a": own, "_group.lab": "gpuHours: 1\nperiod: once"}
    town.begin(("nodes", node()), ("configmaps", budgets(**entries)))
    town.hear("pods", gpu_pod(started_ms=T0))
    town.advance(2 * HOUR)
    write_recorded(town)

    (over,) = listed(town, "namespace=team-a&kind=standing&reason=OverBudget")

    assert over["budget"].startswith("_group.lab@")
    assert over["figures"]["account"] == "_group.lab"


def test_a_posted_decision_by_the_groups_budget_has_its_version(town: Town) -> None:
    own = "gpuHours: 50\nperiod: once\ngroup: lab"
    town.begin(("configmaps", budgets(**{"team_a": own, "_group.lab": "gpuHours: 1\nperiod: once"})))
    post(town, posted(kind="demoted", reason="OverBudget", budget="_group.lab"))
    post(town, posted(kind="demoted", reason="OverBudget", budget="", name="q"))

    found = [each["budget"] for each in listed(town, "namespace=team-a&kind=demoted")]

    assert found == [f"team-a@{T0}", f"_group.lab@{T0}"]


def test_the_charge_of_a_pod_whose_end_has_no_time_names_none(home: Town) -> None:
    home.change("pods", gpu_pod("p", started_ms=home.clock()))
    home.change(
        "pods", gpu_pod("p", started_ms=home.clock(), phase="Failed") | {"status": {"phase": "Failed"}}
    )

    (charge,) = home.get("/v1/explain/team-a/p").get_json()["charges"]
    assert " from 2026-11-20T10:00:00Z, at the rate 1." in charge["sentence"]


def test_a_pod_that_was_deleted_unseen_has_the_time_when_it_was_last_seen(home: Town) -> None:
    waiting_pod(home)
    seen_ms = home.clock()
    home.hear("pods", unbound(), deleted=True, unheard=True)
    home.clock.turn(MINUTE)
    home.hear_all("pods")
    home.tick()

    (gone,) = home.recorded
    assert (gone.kind, gone.at_ms) == ("deleted", seen_ms)
    assert gone.figures["message"] == UNSEEN


def held(name: str) -> Json:
    """A pod of a Job that waits behind the gate."""
    raw = unbound(name)
    raw["metadata"]["annotations"]["bursar.dev/held"] = "budget"
    raw["spec"]["schedulingGates"] = [{"name": "bursar.dev/budget"}]
    return raw


def deletions(home: Town) -> list[tuple[str, str]]:
    """The name and the message of each decision about a deletion."""
    return [(each.name, str(each.figures["message"])) for each in home.recorded if each.kind == "deleted"]


UNSEEN = "Deleted while no watch ran; it had no node when it was last seen."


def test_a_held_pod_that_was_deleted_while_no_timekeeper_ran_waits_for_nothing(home: Town) -> None:
    home.change("pods", held("q"))
    about = {"name": "q", "generate_name": "", "uid": "uid-q", "owner": "Job/train"}
    post(home, posted(kind="held", reason="OverBudget", **about, figures={"standing": "OVER_BUDGET"}))
    assert home.get("/v1/explain/team-a/q").get_json()["waitsFor"] != []
    seen_ms = home.clock()
    home.clock.turn(HOUR)
    home.hear("pods", held("q"), deleted=True, unheard=True)
    home.resume()
    write_recorded(home)

    pod = home.get("/v1/explain/team-a/q").get_json()
    job = home.get("/v1/explain/team-a/job/train").get_json()

    last = pod["steps"][-1]
    assert (last["reason"], last["owner"]) == ("DeletedUnbound", "Job/train")
    assert 0 <= last["first"] - seen_ms < SECOND
    assert last["sentence"] == UNSEEN
    assert (pod["waitsFor"], job["waitsFor"]) == ([], [])


def test_a_pod_that_was_held_and_is_there_at_a_start_has_no_such_decision(home: Town) -> None:
    released, bound, unreadable = gpu_pod("released", node=""), gpu_pod("bound"), held("unreadable")
    unreadable["spec"]["containers"] = [container("main", gpu_percent="0.5")]
    for name in ("q", "there", "released", "bound", "unreadable"):
        home.change("pods", held(name))
    home.hear("pods", held("q"), deleted=True, unheard=True)
    for raw in (released, bound, unreadable):
        home.hear("pods", raw, unheard=True)
    home.resume()

    assert deletions(home) == [("q", UNSEEN)]


def test_the_deletion_of_a_pod_that_was_held_is_recorded_once_and_of_a_bound_one_never(home: Town) -> None:
    for name in ("q", "bound"):
        home.change("pods", held(name))
    home.hear("pods", gpu_pod("bound"))
    home.hear("pods", gpu_pod("bound"), deleted=True)
    home.change("pods", held("q"), deleted=True)

    assert deletions(home) == [("q", "Deleted before it had a node.")]


def test_warnings_and_forecasts_of_the_groups_account_name_its_budget(town: Town) -> None:
    own = "gpuHours: 9000\nperiod: month\ngroup: lab"
    entries = {"team_a": own, "_group.lab": "gpuHours: 10\nperiod: month"}
    town.begin(("nodes", node()), ("configmaps", budgets(**entries)))
    town.hear("pods", gpu_pod(started_ms=T0))
    town.advance(8 * HOUR)

    found = {each.reason: each for each in town.recorded}

    assert {reason: each.budget for reason, each in found.items()} == {
        "BudgetNearlyUsed": "_group.lab",
        "ForecastExhaustion": "_group.lab",
    }
    assert "_group.lab (the group of namespace team-a)" in str(found["ForecastExhaustion"].figures["message"])


def gang_waits(name: str, owner: str, key: str) -> Json:
    figures = {"message": f"Gang of {name} waits.", "gangKey": key}
    named = {"name": name, "generate_name": "", "uid": f"uid-{name}", "owner": owner}
    return posted(kind="gang", reason="GangWaits", figures=figures, **named)


@pytest.mark.parametrize(
    ("subject", "pods"),
    [
        ("JobSet/train", ["a", "b"]),
        ("jobset/train", ["a", "b"]),
        ("jobsets/train-x", ["c"]),
        ("JobSet/trai", []),
        ("lws/group", ["d", "e"]),
        ("LeaderWorkerSet/group-1", ["f"]),
        ("RayCluster/ray", ["g"]),
        ("rayclusters/ray", ["g"]),
    ],
)
def test_an_owner_whose_pods_other_controllers_make_is_explained_by_its_gangs(
    home: Town, subject: str, pods: list[str]
) -> None:
    """Names of others begin with its name."""
    post(
        home,
        gang_waits("a", "Job/train-w-0", "jobset/train/u1/0"),
        gang_waits("b", "Job/train-d-0", "jobset/train/u1/0"),
        gang_waits("c", "Job/train-x-w-0", "jobset/train-x/u2/0"),
        gang_waits("d", "StatefulSet/group", "leaderworkerset/group-0"),
        gang_waits("e", "StatefulSet/group-10", "leaderworkerset/group-10"),
        gang_waits("f", "StatefulSet/group-1-0", "leaderworkerset/group-1-0"),
        gang_waits("g", "RayCluster/ray", "ray/ray/u3"),
    )

    told = home.get(f"/v1/explain/team-a/{subject}").get_json()

    assert [step["pod"] for step in told["steps"]] == pods
    assert told["waitsFor"] == ([f"Gang of {pods[-1]} waits"] if pods else [])


@pytest.mark.parametrize(
    ("subject", "label"),
    [
        ("JobSet/train", "jobset.sigs.k8s.io/jobset-name"),
        ("lws/train", "leaderworkerset.sigs.k8s.io/name"),
    ],
)
def test_the_charges_of_such_an_owner_are_found_by_the_label_of_its_pods(
    home: Town, subject: str, label: str
) -> None:
    for name, of in (("p", "train"), ("q", "train-2")):
        raw = gpu_pod(name, started_ms=T0, labels={label: of})
        by = {"apiVersion": "batch/v1", "kind": "Job", "name": f"of-{of}", "uid": name, "controller": True}
        raw["metadata"]["ownerReferences"] = [by]
        home.hear("pods", raw)
    home.advance(MINUTE)

    charges = home.get(f"/v1/explain/team-a/{subject}").get_json()["charges"]

    assert [charge["pod"] for charge in charges] == ["p"]
